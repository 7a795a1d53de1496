//! Packs of kernels as artefacts in a registry, by the OCI distribution specification: a manifest
//! with an empty configuration and one layer, the pack.

mod auth;
mod name;

pub use auth::Login;
pub use name::{Artefact, BadArtefact, SCHEME, is_loopback};

use crate::error::{Error, shown};
use crate::http::{agent, encoded, host, join, same_host};
use crate::rate_meter::{MinRate, RateMeter};
use crate::settings::Settings;
use auth::Challenge;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use ureq::http::{Method, Request, Response, Uri, header};
use ureq::{Agent, Body};

/// The type of a pack, as an artefact and as its layer.
pub const PACK_TYPE: &str = "application/vnd.kjit.pack.v1";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
const EMPTY: &[u8] = b"{}";
/// The largest manifest, and the largest answer of a token service.
const MANIFEST_LIMIT: u64 = 1 << 20;
/// The most redirects of a download: to the registry's storage.
const MAX_HOPS: usize = 5;

/// The error of an exchange with a registry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A setting is unusable.
    #[error(transparent)]
    Setting(#[from] Error),
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The registry does not answer, or breaks off.
    #[error("{host} does not answer as a registry ({why}): look at the name and the network")]
    Unreachable {
        /// Scheme, host name and port.
        host: String,
        /// The reason.
        why: String,
    },
    /// The registry sends less than the minimum rate.
    #[error("{host} sends {rate} bytes a second, too few: try later, or allow less (--min-rate)")]
    Slow {
        /// Scheme, host name and port.
        host: String,
        /// Bytes per second.
        rate: u64,
    },
    /// The registry wants another login.
    #[error(
        "{host} refuses {what} ({status}): \
         set KJIT_REGISTRY_USER and KJIT_REGISTRY_PASSWORD to an account that may"
    )]
    Login {
        /// Scheme, host name and port.
        host: String,
        /// The request.
        what: &'static str,
        /// The status.
        status: u16,
    },
    /// There is no such artefact.
    #[error("{0} is not there: look at the repository and the tag")]
    NotThere(String),
    /// Another status.
    #[error("{host} answers {what} with status {status}{said}")]
    Status {
        /// Scheme, host name and port.
        host: String,
        /// The request.
        what: &'static str,
        /// The status.
        status: u16,
        /// The registry's message, if any.
        said: String,
    },
    /// The answer violates the specification, or is not a pack.
    #[error("{artefact}: {why}")]
    Strange {
        /// The artefact.
        artefact: String,
        /// The reason.
        why: String,
    },
}

/// A registry's repository.
pub struct Registry {
    agent: Agent,
    artefact: Artefact,
    base: Uri,
    login: Option<Login>,
    /// The header of a token service's token.
    token: Option<String>,
    pace: MinRate,
}

type Result<T> = std::result::Result<T, RegistryError>;

impl Registry {
    /// The repository of an artefact. Nothing is sent yet.
    ///
    /// # Errors
    /// The file of certificates is unusable.
    pub fn new(settings: &Settings, artefact: &Artefact, login: Option<Login>) -> Result<Registry> {
        let strange = |why: String| RegistryError::Strange { artefact: artefact.to_string(), why };
        let base = artefact.base().parse().map_err(|e| strange(format!("not an address: {e}")))?;
        let pace = MinRate { rate: settings.min_rate, window: settings.window };
        let (agent, artefact) = (agent(settings)?, artefact.clone());
        Ok(Registry { agent, artefact, base, login, token: None, pace })
    }

    /// Uploads a pack under the artefact's tag, and returns the digest of its manifest. Blobs that
    /// the registry has are not sent again.
    ///
    /// # Errors
    /// The file cannot be read; the registry refuses or does not answer.
    pub fn push(
        &mut self,
        pack: &mut File,
        annotations: &BTreeMap<String, String>,
    ) -> Result<String> {
        let local = |source| RegistryError::Io { path: "the pack".to_owned(), source };
        let (mut hasher, mut size, mut buffer) = (Sha256::new(), 0u64, vec![0; 1 << 16]);
        pack.seek(SeekFrom::Start(0)).map_err(local)?;
        loop {
            let n = pack.read(&mut buffer).map_err(local)?;
            if n == 0 {
                break;
            }
            hasher.update(buffer.get(..n).unwrap_or_default());
            size += n as u64;
        }
        let (digest, empty) = (named(hasher), digest_of(EMPTY));
        self.upload(&empty, &mut Content::Bytes(EMPTY))?;
        self.upload(&digest, &mut Content::File(pack))?;
        let layer = json!({ "mediaType": PACK_TYPE, "digest": digest, "size": size });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": PACK_TYPE,
            "config": { "mediaType": EMPTY_TYPE, "digest": empty, "size": EMPTY.len() },
            "layers": [layer],
            "annotations": annotations,
        })
        .to_string();
        let at = self.url(&format!("manifests/{}", self.artefact.tag))?;
        let what = "the manifest";
        let answer = self.ask(&Method::PUT, &at, what, &mut Content::Bytes(manifest.as_bytes()))?;
        self.good(answer, &at, what)?;
        Ok(digest_of(manifest.as_bytes()))
    }

    /// Downloads the artefact's pack to a file. Its digest and size must equal the values in the
    /// manifest. The caller checks the pack's signature. Returns the digest of the manifest.
    ///
    /// # Errors
    /// No such artefact, not a pack, content that does not match its digest; the file cannot be
    /// written; the registry refuses or does not answer.
    pub fn pull(&mut self, to: &mut File) -> Result<String> {
        let what = "the manifest";
        let at = self.url(&format!("manifests/{}", self.artefact.tag))?;
        let answer = self.ask(&Method::GET, &at, what, &mut Content::None)?;
        let mut answer = self.good(answer, &at, what)?;
        let body = answer.body_mut().with_config().limit(MANIFEST_LIMIT).read_to_vec();
        let body = body.map_err(|e| unreachable(&at, &e))?;
        let manifest: Value = serde_json::from_slice(&body)
            .map_err(|e| self.strange(format!("its manifest: {e}")))?;
        let layers = manifest.get("layers").and_then(Value::as_array);
        let mut packs = layers.into_iter().flatten().filter(|l| l["mediaType"] == PACK_TYPE);
        let (Some(layer), None) = (packs.next(), packs.next()) else {
            return Err(self.strange(format!("it has not one layer of type {PACK_TYPE}")));
        };
        let digest = layer["digest"].as_str().unwrap_or_default();
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        let (true, Some(size)) = (
            hex.len() == 64
                && hex.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase()),
            layer["size"].as_u64(),
        ) else {
            return Err(self.strange("its layer has no SHA-256 digest, or no size".to_owned()));
        };
        self.download(digest, size, to)?;
        Ok(digest_of(&body))
    }

    fn download(&mut self, digest: &str, size: u64, to: &mut File) -> Result<()> {
        let what = "the pack";
        let mut at = self.url(&format!("blobs/{digest}"))?;
        let mut hops = 0;
        let answer = loop {
            let answer = self.ask(&Method::GET, &at, what, &mut Content::None)?;
            if !answer.status().is_redirection() {
                break self.good(answer, &at, what)?;
            }
            hops += 1;
            if hops > MAX_HOPS {
                return Err(self.strange(format!("{MAX_HOPS} redirects")));
            }
            at = self.next(&at, &answer)?;
        };
        let local = |source| RegistryError::Io { path: "the downloaded pack".to_owned(), source };
        let (mut reader, mut hasher) = (answer.into_body().into_reader(), Sha256::new());
        let (mut meter, mut came, mut buffer) = (RateMeter::new(self.pace), 0, vec![0; 1 << 16]);
        loop {
            let n = reader.read(&mut buffer).map_err(|e| RegistryError::Unreachable {
                host: host(&at),
                why: shown(&e.to_string()),
            })?;
            if n == 0 {
                break;
            }
            came += n as u64;
            if came > size {
                break;
            }
            meter.came(n).map_err(|rate| RegistryError::Slow { host: host(&at), rate })?;
            let part = buffer.get(..n).unwrap_or_default();
            hasher.update(part);
            to.write_all(part).map_err(local)?;
        }
        if came != size || named(hasher) != digest {
            let why = "the content of its pack does not match its digest: try again";
            return Err(self.strange(why.to_owned()));
        }
        to.flush().map_err(local)
    }

    /// Uploads a blob that is not there yet, in one piece.
    fn upload(&mut self, digest: &str, content: &mut Content<'_>) -> Result<()> {
        let what = "an upload";
        let at = self.url(&format!("blobs/{digest}"))?;
        if self.ask(&Method::HEAD, &at, what, &mut Content::None)?.status().is_success() {
            return Ok(());
        }
        let at = self.url("blobs/uploads/")?;
        let answer = self.ask(&Method::POST, &at, what, &mut Content::Bytes(&[]))?;
        let answer = self.good(answer, &at, what)?;
        let to = self.next(&at, &answer)?;
        let mark = if to.query().is_some() { '&' } else { '?' };
        let to = format!("{to}{mark}digest={digest}");
        let to = to.parse().map_err(|e| self.strange(format!("its upload's address: {e}")))?;
        let answer = self.ask(&Method::PUT, &to, what, content)?;
        self.good(answer, &to, what).map(|_| ())
    }

    fn url(&self, path: &str) -> Result<Uri> {
        let text = format!("{}/v2/{}/{path}", self.artefact.base(), self.artefact.repository);
        text.parse().map_err(|e| self.strange(format!("not an address: {e}")))
    }

    /// The address of an answer's `Location`. HTTPS does not lead to HTTP.
    fn next(&self, at: &Uri, answer: &Response<Body>) -> Result<Uri> {
        let to = answer.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
        let to = to.ok_or_else(|| self.strange("it leads nowhere: no Location".to_owned()))?;
        let to = join(at, to)?;
        if at.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
            let why = format!("it leads to {}, which is not encrypted", host(&to));
            return Err(self.strange(why));
        }
        Ok(to)
    }

    /// Sends a request. If the registry requires a token, it is requested once from the token
    /// service.
    fn ask(
        &mut self,
        method: &Method,
        at: &Uri,
        what: &'static str,
        content: &mut Content<'_>,
    ) -> Result<Response<Body>> {
        let answer = self.once(method, at, what, content)?;
        let ours = same_host(at, &self.base) && self.token.is_none();
        let header = answer.headers().get(header::WWW_AUTHENTICATE);
        let challenge = header.and_then(|h| Challenge::parse(h.to_str().ok()?));
        match challenge.filter(|_| ours && answer.status().as_u16() == 401) {
            None => Ok(answer),
            Some(challenge) => {
                self.token = Some(self.token_of(&challenge)?);
                self.once(method, at, what, content)
            }
        }
    }

    fn once(
        &self,
        method: &Method,
        at: &Uri,
        what: &'static str,
        content: &mut Content<'_>,
    ) -> Result<Response<Body>> {
        let mut request = Request::builder().method(method).uri(at);
        let login = self.token.clone().or_else(|| self.login.as_ref().map(Login::basic));
        // Never to another host: storage has signed addresses.
        if let Some(login) = login.filter(|_| same_host(at, &self.base)) {
            request = request.header(header::AUTHORIZATION, login);
        }
        request = match (method, what) {
            (&Method::PUT, "the manifest") => request.header(header::CONTENT_TYPE, MANIFEST_TYPE),
            (&Method::PUT, _) => request.header(header::CONTENT_TYPE, "application/octet-stream"),
            (_, "the manifest") => request.header(header::ACCEPT, MANIFEST_TYPE),
            _ => request,
        };
        let strange = |e: ureq::http::Error| self.strange(format!("not a request: {e}"));
        let sent = match content {
            Content::None => self.agent.run(request.body(()).map_err(strange)?),
            Content::Bytes(bytes) => self.agent.run(request.body(*bytes).map_err(strange)?),
            Content::File(file) => {
                let local = |source| RegistryError::Io { path: "the pack".to_owned(), source };
                file.seek(SeekFrom::Start(0)).map_err(local)?;
                self.agent.run(request.body(&**file).map_err(strange)?)
            }
        };
        sent.map_err(|e| unreachable(at, &e))
    }

    /// The token of a token service.
    fn token_of(&self, challenge: &Challenge) -> Result<String> {
        let mut text = challenge.realm.clone();
        for (name, value) in &challenge.parameters {
            let mark = if text.contains('?') { '&' } else { '?' };
            text += &format!("{mark}{name}={}", encoded(value));
        }
        let at: Uri = text.parse().map_err(|e| self.strange(format!("its token service: {e}")))?;
        // The password is sent there: only encrypted, or within this machine.
        if at.scheme_str() != Some("https") && !is_loopback(at.host().unwrap_or_default()) {
            let why = format!("its token service {} is not encrypted", host(&at));
            return Err(self.strange(why));
        }
        let mut request = self.agent.get(&at);
        if let Some(login) = &self.login {
            request = request.header(header::AUTHORIZATION, login.basic());
        }
        let answer = request.call().map_err(|e| unreachable(&at, &e))?;
        let mut answer = self.good(answer, &at, "a token")?;
        let body = answer.body_mut().with_config().limit(MANIFEST_LIMIT).read_to_vec();
        let body = body.map_err(|e| unreachable(&at, &e))?;
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |name: &str| said.get(name).and_then(Value::as_str);
        let token = text("token").or_else(|| text("access_token"));
        match token.filter(|t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_graphic())) {
            Some(token) => Ok(format!("Bearer {token}")),
            None => Err(self.strange(format!("its token service {} gives none", host(&at)))),
        }
    }

    /// The answer, if its status is a success.
    fn good(
        &self,
        mut answer: Response<Body>,
        at: &Uri,
        what: &'static str,
    ) -> Result<Response<Body>> {
        let (status, host) = (answer.status().as_u16(), host(at));
        match status {
            200..=299 => Ok(answer),
            401 | 403 => Err(RegistryError::Login { host, what, status }),
            404 if what != "an upload" => Err(RegistryError::NotThere(self.artefact.to_string())),
            _ => {
                let body = answer.body_mut().with_config().limit(MANIFEST_LIMIT).read_to_string();
                let said: Value =
                    serde_json::from_str(&body.unwrap_or_default()).unwrap_or_default();
                let said = said.pointer("/errors/0/message").and_then(Value::as_str).map(shown);
                let said = said.map_or(String::new(), |said| format!(": {said}"));
                Err(RegistryError::Status { host, what, status, said })
            }
        }
    }

    fn strange(&self, why: String) -> RegistryError {
        RegistryError::Strange { artefact: self.artefact.to_string(), why }
    }
}

/// The content of a request.
enum Content<'c> {
    None,
    Bytes(&'c [u8]),
    File(&'c mut File),
}

fn unreachable(at: &Uri, error: &ureq::Error) -> RegistryError {
    RegistryError::Unreachable { host: host(at), why: shown(&error.to_string()) }
}

fn named(hasher: Sha256) -> String {
    let hex: String = hasher.finalize().iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

fn digest_of(bytes: &[u8]) -> String {
    named(Sha256::new_with_prefix(bytes))
}
