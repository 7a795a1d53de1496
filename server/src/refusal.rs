//! Error responses, in the format of each dialect.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kjit_model::elide::{MAX_LINE, elide};
use serde_json::json;

/// A request that is refused or fails.
#[derive(Debug, Clone)]
pub struct Refusal {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    field: Option<String>,
    code: Option<&'static str>,
    /// Seconds after which the client may try again.
    retry_after: Option<u64>,
}

/// The API whose error format is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
    /// `{"error": "…"}`
    Ollama,
}

impl Dialect {
    /// The dialect of a request path.
    pub fn of(path: &str) -> Dialect {
        match path.split('/').find(|part| !part.is_empty() && *part != "v1") {
            Some("api") => Dialect::Ollama,
            Some("messages") => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Refusal {
        // The text may quote client input of any length.
        let message = elide(&message.into(), MAX_LINE).into_owned();
        Refusal { status, message, field: None, code: None, retry_after: None }
    }

    /// 400: the request as a whole is wrong.
    pub fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400: a field is wrong.
    pub fn field(name: &str, why: impl std::fmt::Display) -> Refusal {
        Refusal {
            field: Some(elide(name, 100).into_owned()),
            ..Refusal::bad(format!("'{name}': {why}"))
        }
    }

    /// 400: a prompt is too long.
    pub fn too_long(prompt: usize, answer: Option<usize>, context: usize) -> Refusal {
        let answer = answer.map_or(String::new(), |n| format!(" and an answer of at least {n}"));
        let message = format!(
            "the prompt has {prompt} tokens{answer}, the context has room for {context}: \
             shorten the prompt"
        );
        Refusal {
            code: Some("context_length_exceeded"),
            field: Some("messages".into()),
            ..Refusal::bad(message)
        }
    }

    /// 400: a prompt is too long. It was not counted to its end.
    pub fn longer(least: usize, context: usize) -> Refusal {
        let message = format!(
            "the prompt has at least {least} tokens, the context has room for {context}: \
             shorten the prompt"
        );
        Refusal { message, ..Refusal::too_long(least, None, context) }
    }

    /// This refusal, with the name of a field.
    pub fn of(self, field: &str) -> Refusal {
        Refusal { field: Some(field.to_owned()), ..self }
    }

    /// 401: no valid key.
    pub fn no_key() -> Refusal {
        let why = "this server wants its API key: \
            send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
        Refusal { code: Some("invalid_api_key"), ..Refusal::new(StatusCode::UNAUTHORIZED, why) }
    }

    /// 403: a foreign origin or host name.
    pub fn foreign(why: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, why)
    }

    /// 404: a model that is not served here.
    pub fn no_model(name: &str, served: &[&str]) -> Refusal {
        let verb = if served.len() == 1 { "is" } else { "are" };
        let message = format!(
            "'model': '{}' is not served here; '{}' {verb}",
            name.escape_debug(),
            served.join("', '")
        );
        Refusal {
            code: Some("model_not_found"),
            field: Some("model".into()),
            ..Refusal::new(StatusCode::NOT_FOUND, message)
        }
    }

    /// 404: something that does not exist.
    pub fn unknown(why: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, why)
    }
    /// 404: an unknown path, or 405: a different method is needed.
    pub fn no_route(status: StatusCode, method: &str, path: &str) -> Refusal {
        Refusal::new(status, format!("there is no {method} {} here", path.escape_debug()))
    }

    /// 408: the request took too long.
    pub fn too_slow() -> Refusal {
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request's body did not arrive in time")
    }

    /// 413: the body is too large.
    pub fn too_large(limit: usize) -> Refusal {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request's body is larger than {limit} bytes"),
        )
    }

    /// 415 or 501: an encoding of the body that is not supported.
    pub fn encoded(status: StatusCode, why: impl Into<String>) -> Refusal {
        Refusal::new(status, why)
    }

    /// 429: the queue is full.
    pub fn busy(retry_after: u64, why: impl Into<String>) -> Refusal {
        Refusal {
            retry_after: Some(retry_after),
            code: Some("queue_full"),
            ..Refusal::new(StatusCode::TOO_MANY_REQUESTS, why)
        }
    }

    /// 503: the service is not available yet, or no longer.
    pub fn unavailable(retry_after: u64, why: impl Into<String>) -> Refusal {
        Refusal {
            retry_after: Some(retry_after),
            ..Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why)
        }
    }

    /// 503: the server is starting.
    pub fn loading() -> Refusal {
        Refusal::unavailable(2, "the model is being loaded")
    }

    /// 500: an internal fault.
    pub fn internal(why: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why)
    }

    /// HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The error type in Anthropic's format.
    fn anthropic_kind(&self) -> &'static str {
        match self.status.as_u16() {
            404 => "not_found_error",
            413 => "request_too_large",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => self.kind(),
        }
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body of the response.
    pub fn json(&self, dialect: Dialect) -> serde_json::Value {
        match dialect {
            Dialect::Ollama => json!({ "error": self.message }),
            Dialect::Anthropic => json!({ "type": "error", "error": {
                "type": self.anthropic_kind(), "message": self.message
            } }),
            Dialect::OpenAi => json!({ "error": {
                "message": self.message, "type": self.kind(), "param": self.field, "code": self.code
            } }),
        }
    }

    /// The complete response.
    pub fn response(&self, dialect: Dialect) -> Response {
        let json = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, json, self.json(dialect).to_string()).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
