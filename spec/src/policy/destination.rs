//! Destinations of the network allowlist. What is written here is compared with what a turn asks the proxy
//! for, so every spelling that could mean two things to two resolvers is refused.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::value::{Error, shown};

/// The longest host name, in bytes (RFC 1035 §2.3.4).
const MAX_HOST: usize = 253;
/// The longest label of a host name, in bytes (RFC 1035 §2.3.4).
const MAX_LABEL: usize = 63;
/// What is wrong with a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DestinationFault {
    /// A URL.
    #[error("a scheme or a path")]
    Url,
    /// A pattern.
    #[error("a pattern")]
    Pattern,
    /// A network with a prefix length.
    #[error("a network")]
    Network,
    /// An IPv6 address without brackets: where does the port begin?
    #[error("an IPv6 address without brackets")]
    Brackets,
    /// Not a port.
    #[error("the port is not a number from 1 to 65535")]
    Port,
    /// Neither a name nor an address.
    #[error("neither a host name nor an address")]
    Host,
}

/// A destination of the network allowlist: a host, and a port where only that one is meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The host.
    pub host: Host,
    /// The only port; `None`: every port.
    pub port: Option<u16>,
}

/// A host of the network allowlist.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name, in lower case, without the final dot.
    Name(String),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6(Ipv6Addr),
}

impl FromStr for Destination {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fail = |fault| Error::Destination { given: shown(text), fault };
        if text.contains("//") {
            return Err(fail(DestinationFault::Url));
        }
        if text.contains('*') {
            return Err(fail(DestinationFault::Pattern));
        }
        if let Some((address, _)) = text.split_once('/') {
            let network = address.parse::<std::net::IpAddr>().is_ok();
            return Err(fail(if network { DestinationFault::Network } else { DestinationFault::Url }));
        }
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (address, port) = rest.split_once(']').ok_or_else(|| fail(DestinationFault::Host))?;
            let address = address.parse().map_err(|_| fail(DestinationFault::Host))?;
            let port = match port {
                "" => None,
                _ => Some(port.strip_prefix(':').ok_or_else(|| fail(DestinationFault::Port))?),
            };
            (Host::V6(address), port)
        } else if text.parse::<Ipv6Addr>().is_ok() {
            return Err(fail(DestinationFault::Brackets));
        } else {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            (host_name(host).ok_or_else(|| fail(DestinationFault::Host))?, port)
        };
        let port = match port {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let port = digits.parse().ok().filter(|port| *port > 0);
                Some(port.ok_or_else(|| fail(DestinationFault::Port))?)
            }
            Some(_) => return Err(fail(DestinationFault::Port)),
            None => None,
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => f.write_str(name)?,
            Host::V4(address) => address.fmt(f)?,
            Host::V6(address) => write!(f, "[{address}]")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// A name or an IPv4 address. What looks like a number (`127.1`, `0x7f.1`, `2130706433`) but is not four of
/// them is refused: inet_aton(3) and with it many a resolver takes those for addresses.
fn host_name(text: &str) -> Option<Host> {
    if let Ok(address) = text.parse() {
        return Some(Host::V4(address));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= MAX_LABEL
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    let number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    let valid = name.len() <= MAX_HOST && name.split('.').all(label) && !number;
    valid.then(|| Host::Name(name.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations() {
        for (text, canonical) in [
            ("example.org", "example.org"),
            ("Example.ORG.:443", "example.org:443"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]", "[::1]"),
            ("[2001:DB8::1]:8080", "[2001:db8::1]:8080"),
            ("localhost:5432", "localhost:5432"),
            ("my_service", "my_service"),
        ] {
            let destination: Destination = text.parse().unwrap();
            assert_eq!(destination.to_string(), canonical, "{text}");
            assert_eq!(canonical.parse(), Ok(destination));
        }
        for (text, fault) in [
            ("", DestinationFault::Host),
            ("https://example.org", DestinationFault::Url),
            ("example.org/path", DestinationFault::Url),
            ("10.0.0.0/8", DestinationFault::Network),
            ("*.example.org", DestinationFault::Pattern),
            ("::1", DestinationFault::Brackets),
            ("[::1", DestinationFault::Host),
            ("[::1]80", DestinationFault::Port),
            ("example.org:", DestinationFault::Port),
            ("example.org:0", DestinationFault::Port),
            ("example.org:65536", DestinationFault::Port),
            ("example.org:http", DestinationFault::Port),
            ("example.org:+80", DestinationFault::Port),
            ("127.1", DestinationFault::Host),
            ("0x7f.1", DestinationFault::Host),
            ("2130706433", DestinationFault::Host),
            ("0x7f000001", DestinationFault::Host),
            ("127.0.0.1.", DestinationFault::Host),
            ("-a.org", DestinationFault::Host),
            ("a..org", DestinationFault::Host),
            ("exämple.org", DestinationFault::Host),
            ("a b", DestinationFault::Host),
        ] {
            let error = text.parse::<Destination>().unwrap_err();
            assert_eq!(error, Error::Destination { given: shown(text), fault }, "{text}");
        }
    }
}
