//! `brood port-forward`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use brood_api::error::ErrorCode;
use brood_api::{ApiError, Client};
use brood_sandbox::model::PublishedPort;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Context;
use crate::arguments::PortForwardArguments;
use crate::failure::Outcome;
use crate::output;

pub async fn run(context: &Context, arguments: PortForwardArguments) -> Outcome {
    let client = Arc::new(context.client().await?);
    // The whole id: a beginning of it may mean another sandbox later.
    let id = client.sandbox(&arguments.id).await?.id.to_string();
    let mut listeners = Vec::new();
    for wanted in &arguments.ports {
        let listener = TcpListener::bind(wanted.host).await;
        listeners.push((listener.with_context(|| format!("cannot listen on {}", wanted.host))?, wanted.port));
    }
    let mut forwards = JoinSet::new();
    let (gone, mut is_gone) = mpsc::channel::<ApiError>(1);
    for (listener, port) in listeners {
        let local = listener.local_addr()?;
        if context.global.json {
            output::json(&PublishedPort { host: local, port })?;
        } else {
            output::line(format_args!("forwarding {local} -> {port}"))?;
        }
        forwards.spawn(accept_all(
            listener,
            Inside { client: Arc::clone(&client), id: id.clone(), port },
            gone.clone(),
        ));
    }
    tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::SUCCESS),
        Some(error) = is_gone.recv() => Err(error.into()),
        Some(ended) = forwards.join_next() => match ended {
            Ok(Ok(())) => bail!("a listening socket ended"),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(error.into()),
        },
    }
}

/// Where a local port leads.
#[derive(Debug, Clone)]
struct Inside {
    client: Arc<Client>,
    id: String,
    port: u16,
}

async fn accept_all(listener: TcpListener, inside: Inside, gone: mpsc::Sender<ApiError>) -> std::io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let (inside, gone) = (inside.clone(), gone.clone());
        tokio::spawn(async move {
            let Err(error) = carry(stream, &inside).await else { return };
            eprintln!("brood: connection of {peer} to port {}: {error}", inside.port);
            // That nothing listens may change; that the sandbox is gone cannot.
            if let Err(error) = inside.client.sandbox(&inside.id).await
                && is_final(&error)
            {
                // Whoever was first has said it.
                drop(gone.try_send(error));
            }
        });
    }
}

fn is_final(error: &ApiError) -> bool {
    match error {
        ApiError::Remote(body) => body.code == ErrorCode::NotFound,
        ApiError::Unreachable { .. } => true,
        _ => false,
    }
}

async fn carry(mut stream: TcpStream, inside: &Inside) -> Result<(), ApiError> {
    let connected = inside.client.connect_port(&inside.id, inside.port).await;
    let mut connection = match connected {
        Ok(connection) => connection,
        Err(error) => {
            // A reset instead of an end: the peer must not take silence for an empty answer.
            drop(stream.set_zero_linger());
            return Err(error);
        }
    };
    // How a connection ends is for its two ends to judge.
    drop(tokio::io::copy_bidirectional(&mut stream, &mut connection).await);
    Ok(())
}
