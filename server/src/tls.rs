//! TLS: a certificate with its key, and the handshake of each connection. Uses rustls with ring,
//! which the hub's client uses already.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// A certificate with its key, read and checked.
#[derive(Clone)]
pub struct Tls(tokio_rustls::TlsAcceptor);

impl Tls {
    /// Reads two PEM files: the certificate chain, and its key.
    ///
    /// # Errors
    /// One line that names the file and its fault.
    pub fn read(certificate: &Path, key: &Path) -> Result<Tls, String> {
        let wrong = |file: &Path, why: &dyn Display| format!("{}: {why}", file.display());
        let bytes = |file: &Path| std::fs::read(file).map_err(|why| wrong(file, &why));
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(&bytes(certificate)?)
                .collect::<Result<_, _>>()
                .map_err(|why| wrong(certificate, &format_args!("no certificate in PEM: {why}")))?;
        if chain.is_empty() {
            return Err(wrong(certificate, &"it contains no certificate (PEM expected)"));
        }
        let private = PrivateKeyDer::from_pem_slice(&bytes(key)?)
            .map_err(|why| wrong(key, &format_args!("no private key in PEM: {why}")))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|why| why.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, private);
        let mut config = config.map_err(|why| {
            format!("{} and {} do not go together: {why}", certificate.display(), key.display())
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(tokio_rustls::TlsAcceptor::from(Arc::new(config))))
    }

    /// Completes the handshake within this time. `None` on a failed or timed-out handshake.
    pub async fn greet(
        &self,
        stream: TcpStream,
        patience: Duration,
    ) -> Option<TlsStream<TcpStream>> {
        tokio::time::timeout(patience, self.0.accept(stream)).await.ok()?.ok()
    }
}
