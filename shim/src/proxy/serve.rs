//! The process that serves: one thread, one event loop, one task for each connection of the turn.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use codeoid_spec::network::Rules;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::reach::Reach;
use super::refusal::Log;
use super::{http, socks};

/// Connections at a time; the turn's next ones wait. With the buffers below it bounds what a turn can make
/// of us.
const CONNECTIONS: usize = 512;

/// Each direction's buffer, in bytes.
const BUFFER: usize = 64 << 10;

/// How long a client may take to say what it wants.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Serves until this process is ended; returns an exit code where it cannot.
pub fn run(listener: OwnedFd, notices: OwnedFd, rules: Rules) -> i32 {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() else {
        return 1;
    };
    let reach = Reach::new(rules, Log::new(notices));
    runtime.block_on(async {
        let listener = std::net::TcpListener::from(listener);
        match listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) {
            Ok(listener) => accept(listener, Arc::new(reach)).await,
            Err(_) => 1,
        }
    })
}

async fn accept(listener: TcpListener, reach: Arc<Reach>) -> i32 {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return 1 };
        match listener.accept().await {
            Ok((client, _)) => {
                let conversation = Conversation { reach: Arc::clone(&reach), _place: Arc::new(place) };
                tokio::spawn(conversation.hold(client));
            }
            // Aborted by the client, or no descriptors left: it may be better in a moment.
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// What one connection of the turn needs, for as long as anything of it lives.
#[derive(Clone)]
pub struct Conversation {
    /// What decides.
    pub reach: Arc<Reach>,
    _place: Arc<OwnedSemaphorePermit>,
}

impl Conversation {
    async fn hold(self, client: TcpStream) {
        let _ = client.set_nodelay(true);
        let mut first = [0];
        let Ok(Ok(1)) = timeout(PATIENCE, client.peek(&mut first)).await else { return };
        // No HTTP method begins with the number of SOCKS (RFC 1928 §3).
        match first {
            [5] => socks::hold(self, client).await,
            _ => http::hold(self, client).await,
        }
    }
}

/// Carries bytes both ways until both sides have ended, or one has failed.
pub async fn carry(mut client: TcpStream, mut server: TcpStream) {
    let _ = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await;
}
