//! Ports inside: one upgraded connection for each connection that is led in.

use std::io;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use brood_api::types::PORT_PROTOCOL;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tracing::debug;

use super::NativeState;
use super::failure::{Failure, blocking};
use super::processes::{asked_upgrade, switching_protocols};
use super::sandboxes::find;

/// Connects to a port inside and becomes that connection.
pub(super) async fn connect(
    State(state): State<NativeState>,
    Path((id, port)): Path<(String, u16)>,
    mut request: Request,
) -> Result<Response, Failure> {
    let upgrade = asked_upgrade(&mut request, PORT_PROTOCOL)?.ok_or_else(|| {
        Failure::invalid(format!("a port is reached by an upgrade of the connection to {PORT_PROTOCOL}"))
    })?;
    let sandbox = find(state.engine(), &id)?;
    let inside = blocking(move || sandbox.connect(port)).await?;
    tokio::spawn(async move {
        if let Err(error) = carry(state, upgrade, inside).await {
            debug!(%error, "a connection to a port inside broke");
        }
    });
    Ok(switching_protocols(PORT_PROTOCOL))
}

async fn carry(state: NativeState, upgrade: OnUpgrade, inside: std::net::TcpStream) -> io::Result<()> {
    let mut client = TokioIo::new(upgrade.await.map_err(io::Error::other)?);
    inside.set_nonblocking(true)?;
    inside.set_nodelay(true)?;
    let mut inside = TcpStream::from_std(inside)?;
    let mut ended = state.ended();
    tokio::select! {
        copied = tokio::io::copy_bidirectional(&mut client, &mut inside) => copied.map(drop),
        // The daemon is ending, and the sandbox with it.
        _ = ended.wait_for(|ended| *ended) => Ok(()),
    }
}
