//! From what a turn asks for to a connection, or to the reason why there is none. Each address that a name leads to is
//! judged, and exactly that address is connected to: no second look at the name lies between.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use codeoid_spec::network::{Rules, Target};
use nix::ifaddrs::getifaddrs;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::names::{Names, is_localhost};
use super::refusal::{Log, Refusal};

/// How long a connection may take to come about.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long one address may take where the name has others.
const PATIENCE_EACH: Duration = Duration::from_secs(5);

/// What decides about connections, and makes them.
pub struct Reach {
    rules: Rules,
    names: Names,
    log: Log,
}

/// Why there is no connection.
#[derive(Debug)]
pub enum Fault {
    /// It is not let through.
    Refused(Refusal),
    /// The name leads nowhere.
    Unresolved(String),
    /// Nobody answers there.
    Unreachable(io::Error),
}

impl Reach {
    /// By these rules; refusals go to the log.
    pub fn new(rules: Rules, log: Log) -> Self {
        Self { rules, names: Names::default(), log }
    }

    /// Connects.
    pub async fn connect(&self, target: &Target) -> Result<TcpStream, Fault> {
        let addresses = self.admit(target).await.inspect_err(|fault| {
            if let Fault::Refused(refusal) = fault {
                self.log.tell(refusal);
            }
        })?;
        match timeout(PATIENCE, try_each(&addresses)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(Fault::Unreachable(error)),
            Err(_) => Err(Fault::Unreachable(io::ErrorKind::TimedOut.into())),
        }
    }

    /// The addresses that may be connected to for what is asked.
    async fn admit(&self, target: &Target) -> Result<Vec<SocketAddr>, Fault> {
        let refuse = |why: String, allow: String| {
            Fault::Refused(Refusal { destination: target.to_string(), why, allow })
        };
        // Before any name server hears of it: a name can carry a secret to whoever serves it.
        if self.rules.find(target).is_none() {
            return Err(refuse("it is not listed".to_owned(), target.to_string()));
        }
        let (name, port) = match target {
            Target::Address(address) => return Ok(vec![*address]),
            Target::Name(name, port) => (name, *port),
        };
        let own = own_addresses();
        let found = self.names.look_up(name, &own).await.map_err(Fault::Unresolved)?;
        let Some(first) = found.first() else {
            return Err(Fault::Unresolved("there is no such name".to_owned()));
        };
        let at = |address: &IpAddr| SocketAddr::new(address.to_canonical(), port);
        if is_localhost(name) {
            return Ok(found.iter().map(at).collect());
        }
        let judged = |address: &IpAddr| self.rules.judge(at(address), &own);
        let admitted: Vec<_> = found.iter().filter(|address| judged(address).is_ok()).map(at).collect();
        match judged(first) {
            Err(special) if admitted.is_empty() => {
                let first = at(first);
                Err(refuse(format!("it leads to {}, {special}", first.ip()), first.to_string()))
            }
            _ => Ok(admitted),
        }
    }
}

/// This machine's addresses: a service that listens on all of them is meant for this machine often enough.
fn own_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    interfaces
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
        })
        .collect()
}

async fn try_each(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (index, address) in addresses.iter().enumerate() {
        let attempt = TcpStream::connect(address);
        let result = if index + 1 == addresses.len() {
            attempt.await
        } else {
            timeout(PATIENCE_EACH, attempt).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        match result {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
