//! The caller of a request: its client in the queue, and the cached prefixes that it may use.

use crate::adapters::Adapters;
use crate::fields::Fields;
use crate::keys::Key;
use crate::options::Served;
use crate::refusal::Refusal;
use crate::traces::RequestTrace;
use axum::http::{HeaderMap, header};
use kjit_model::serve::Owner;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The caller of a request.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// The client for scheduling: clients are served round robin. It is the API key, or a name from
    /// the request's headers if there is no key.
    pub client: Option<String>,
    /// Owner of the cached prefixes that this caller may use.
    pub owner: Owner,
    /// Bytes of the request's body.
    pub bytes: usize,
    /// The adapters that the caller's key may use; `None`: all.
    pub adapters: Option<Arc<[String]>>,
    /// Whether the caller may load and unload adapters.
    pub loads_adapters: bool,
    /// The client's weight for scheduling; 0 counts as 1.
    pub weight: u32,
    /// The order among the client's waiting requests, as in vLLM: lower values run first.
    pub priority: i32,
    /// The request's trace, if it is recorded.
    pub trace: Option<Arc<RequestTrace>>,
}

impl Caller {
    /// The caller of a request with this key, if the server has keys. With `share`, the cached
    /// prefixes are shared by all keys.
    pub fn of(key: Option<Key>, headers: &HeaderMap, share: bool) -> Caller {
        // Behind a proxy that checks keys, a key is only a client name: it affects scheduling and
        // does not separate prefixes.
        let named = || {
            let key = headers.get(header::AUTHORIZATION).or_else(|| headers.get("x-api-key"))?;
            Some(Sha256::digest(key.as_bytes()).into())
        };
        let client = key.map(|Key(digest)| digest).or_else(named);
        let client = client
            .map(|digest: [u8; 32]| digest.iter().take(8).map(|b| format!("{b:02x}")).collect());
        let owner = key.filter(|_| !share).map_or(Owner::default(), |Key(digest)| Owner(digest));
        Caller { client, owner, weight: 1, ..Caller::default() }
    }

    /// Checks that the caller's key may use the adapters whose scale is not 0.
    ///
    /// # Errors
    /// The key file does not list one of them for this key.
    pub fn may_use(&self, served: &Served, adapters: Option<&Adapters>) -> Result<(), Refusal> {
        let (Some(allowed), Some(adapters)) = (&self.adapters, adapters) else { return Ok(()) };
        match adapters.names(served).find(|name| !allowed.iter().any(|one| one == name)) {
            None => Ok(()),
            Some(name) => {
                Err(Refusal::foreign(format!("this API key may not use the adapter '{name}'")))
            }
        }
    }

    /// This caller with the request's `cache_salt` and `priority`. Prefixes with another salt, or
    /// without salt, are not used.
    ///
    /// # Errors
    /// The salt is not a string, or is empty; the priority is not a whole number.
    pub fn of_request(self, f: &mut Fields) -> Result<Caller, Refusal> {
        let priority = f.whole("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?;
        let priority = priority.and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
        let owner = match f.text("cache_salt")? {
            None => self.owner,
            Some(salt) if salt.is_empty() => {
                return Err(f.wrong("cache_salt", "give a string that is not empty"));
            }
            Some(salt) => {
                let digest = Sha256::new()
                    .chain_update(self.owner.0)
                    .chain_update(salt.as_bytes())
                    .finalize();
                Owner(digest.into())
            }
        };
        Ok(Caller { owner, priority, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::{Caller, Fields, HeaderMap, Key, header};

    #[test]
    fn owner_is_derived_from_key_and_salt_only() {
        let (none, mut named) = (HeaderMap::new(), HeaderMap::new());
        named.insert(header::AUTHORIZATION, "Bearer x".parse().unwrap());
        let salted = |caller: Caller, salt: &str| {
            let mut f = Fields::parse(format!("{{\"cache_salt\": {salt}}}").as_bytes()).unwrap();
            caller.of_request(&mut f).map(|caller| caller.owner)
        };
        let [a, b] = [1, 2].map(|n| Caller::of(Some(Key([n; 32])), &named, false));
        let open = Caller::of(None, &named, false);
        assert!(a.owner != b.owner && a.client != b.client);
        assert_eq!(
            open.owner,
            Caller::of(None, &none, false).owner,
            "an unchecked name is not an owner"
        );
        assert_ne!(open.client, Caller::of(None, &none, false).client);
        let salts = [(&a, "\"s\""), (&a, "\"t\""), (&b, "\"s\""), (&open, "\"s\"")];
        let mut owners: Vec<_> =
            salts.map(|(caller, salt)| salted(caller.clone(), salt).unwrap()).to_vec();
        owners.extend([a.owner, b.owner, open.owner]);
        for (i, one) in owners.iter().enumerate() {
            assert!(!owners.iter().skip(i + 1).any(|other| other == one), "{i}");
        }
        assert_eq!(salted(a.clone(), "null").unwrap(), a.owner);
        assert!(salted(a.clone(), "\"\"").is_err() && salted(a.clone(), "3").is_err());
        // A salt separates prefixes even if all keys share them.
        let [a, b] = [1, 2].map(|n| Caller::of(Some(Key([n; 32])), &none, true));
        assert!(a.owner == b.owner && a.client != b.client);
        assert_eq!(salted(a.clone(), "\"s\"").unwrap(), salted(b, "\"s\"").unwrap());
        assert_ne!(salted(a.clone(), "\"s\"").unwrap(), a.owner);
    }
}
