//! Settings: the hub's address, the cache folder and the token, from the variables of Python's
//! `huggingface_hub`.

use crate::error::Error;
use crate::non_exhaustive::NonExhaustive;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// URL of Hugging Face's hub.
pub const ENDPOINT: &str = "https://huggingface.co";

/// Minimum bytes per second: a model of 1 GB would take more than a week at a lower rate.
pub const MIN_RATE: u64 = 1000;

/// Settings for fetching and storing files.
#[derive(Debug, Clone)]
pub struct Settings {
    /// URL of the hub: scheme, host name, port, and a path prefix if it has one.
    pub endpoint: String,
    /// The cache folder.
    pub cache: PathBuf,
    /// Token for the host of the endpoint. It is not sent to other hosts.
    pub token: Option<Token>,
    /// Whether network access is off.
    pub offline: bool,
    /// Whether `HTTPS_PROXY` and related variables are used.
    pub proxies: bool,
    /// File of trusted certificates (PEM). It replaces the built-in certificates.
    pub certificates: Option<PathBuf>,
    /// Pause before the second try. It doubles before each later try.
    pub pause: Duration,
    /// Time without a byte after which the transfer is stopped.
    pub patience: Duration,
    /// Minimum bytes per second over [`Settings::window`]. A slower transfer is stopped; 0: no
    /// minimum.
    pub min_rate: u64,
    /// Time over which the rate is measured.
    pub window: Duration,
    /// Whether the encoder of a model's images (mmproj) is fetched with the model, if the
    /// repository has one. A reference to a file has none.
    pub encoders: bool,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

/// A token. It is never printed.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Creates a token from its text.
    pub fn new(text: impl Into<String>) -> Token {
        Token(text.into())
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Settings {
    /// Settings that do not depend on environment variables.
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Settings {
        Settings {
            endpoint: endpoint.into().trim_end_matches('/').to_owned(),
            cache: cache.into(),
            token: None,
            offline: false,
            proxies: false,
            certificates: None,
            pause: Duration::from_millis(500),
            patience: Duration::from_secs(30),
            min_rate: MIN_RATE,
            window: Duration::from_secs(60),
            encoders: false,
            _more: NonExhaustive::default(),
        }
    }

    /// Settings from `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HUB_OFFLINE`, `SSL_CERT_FILE`.
    ///
    /// # Errors
    /// A variable has an unusable value, or the user has no home folder.
    pub fn from_env() -> Result<Settings, Error> {
        let home =
            folder(&["HF_HOME"]).or_else(|| Some(folder(&["XDG_CACHE_HOME"])?.join("huggingface")));
        let home = home.or_else(|| Some(env::home_dir()?.join(".cache/huggingface")));
        let cache = folder(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
            .or_else(|| Some(home.as_ref()?.join("hub")));
        let Some(cache) = cache else {
            let why =
                "is not set, and there is no home folder: set it to a folder for models".to_owned();
            return Err(Error::Setting { variable: "HF_HUB_CACHE", why });
        };
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.to_owned());
        if !(endpoint.starts_with("https://") || endpoint.starts_with("http://")) {
            let why = format!(
                "is '{endpoint}', which does not begin with https:// or http://: \
                 unset it, or name a hub"
            );
            return Err(Error::Setting { variable: "HF_ENDPOINT", why });
        }
        let truth = |name| {
            env::var_os(name).is_some_and(|v| {
                ["1", "ON", "YES", "TRUE"].iter().any(|t| v.eq_ignore_ascii_case(t))
            })
        };
        Ok(Settings {
            token: token(home.as_deref())?,
            offline: truth("HF_HUB_OFFLINE") || truth("TRANSFORMERS_OFFLINE"),
            proxies: true,
            certificates: value("SSL_CERT_FILE").map(PathBuf::from),
            ..Settings::new(endpoint, cache)
        })
    }
}

fn value(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|v| !v.is_empty())
}

fn text(variable: &'static str) -> Result<Option<String>, Error> {
    let Some(value) = value(variable) else { return Ok(None) };
    value
        .into_string()
        .map(Some)
        .map_err(|_| Error::Setting { variable, why: "is not UTF-8: set it again".to_owned() })
}

/// The first variable that is set, as a path. `~` is the home folder.
fn folder(names: &[&str]) -> Option<PathBuf> {
    let path = PathBuf::from(names.iter().find_map(|name| value(name))?);
    match path.strip_prefix("~") {
        Ok(rest) => Some(env::home_dir()?.join(rest)),
        Err(_) => Some(path),
    }
}

/// The token from the environment, or from the file that `hf auth login` writes.
fn token(home: Option<&Path>) -> Result<Option<Token>, Error> {
    let (mut name, mut found) = ("HF_TOKEN", text("HF_TOKEN")?);
    if found.is_none() {
        (name, found) = ("HUGGING_FACE_HUB_TOKEN", text("HUGGING_FACE_HUB_TOKEN")?);
    }
    if found.is_none() {
        name = "HF_TOKEN_PATH";
        let file = folder(&["HF_TOKEN_PATH"]).or_else(|| Some(home?.join("token")));
        // If the file does not exist, there is no token. Public files do not need one.
        found = file.and_then(|file| std::fs::read_to_string(file).ok());
    }
    let Some(token) = found.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        let why = "has a token with an invalid character: set it again".to_owned();
        return Err(Error::Setting { variable: name, why });
    }
    Ok(Some(Token(token)))
}
