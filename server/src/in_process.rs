//! A server without sockets, for tests and fuzzers. It answers on any byte stream.

use crate::connection_state::ConnectionState;
use crate::listen::answer;
use crate::options::Options;
use crate::routes::routes;
use crate::service::Service;
use axum::Router;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

/// A server that is only reached by [`InProcessServer::answer`]. It runs in the caller's runtime.
pub struct InProcessServer {
    service: Arc<Service>,
    router: Router,
    stopping: watch::Sender<bool>,
}

impl InProcessServer {
    /// Loads the first model. The other models are known, but are not loaded.
    ///
    /// # Errors
    /// One line that describes the fault of a model.
    pub fn open(options: Options) -> Result<InProcessServer, String> {
        let service = Arc::new(Service::new(options));
        service.models.begin(&service.options, &|loaded| loaded.name().to_owned())?;
        Ok(InProcessServer {
            router: routes(&service),
            service,
            stopping: watch::Sender::new(false),
        })
    }

    /// Answers requests on this connection until it ends.
    pub async fn answer<S>(&self, connection: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut stopping = self.stopping.subscribe();
        answer(
            connection,
            &self.service.options.limits,
            self.router.clone(),
            &ConnectionState::new(),
            &mut stopping,
        )
        .await;
    }

    /// Number of requests that wait or are running.
    pub fn busy(&self) -> usize {
        let of = |loaded: &Arc<crate::loaded::Loaded>| {
            let status = loaded.scheduler.status();
            status.running + status.waiting
        };
        self.service.models.loaded().iter().map(of).sum()
    }
}
