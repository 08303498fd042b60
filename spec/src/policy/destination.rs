//! Destinations of the network allowlist. What is written here is compared with what a turn asks the proxy
//! for, so every spelling that could mean two things to two resolvers is refused.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

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
    /// A pattern that is not `*.` and a name.
    #[error("a pattern that is not '*.' and a name")]
    Pattern,
    /// A network whose prefix length is none, or that has bits beyond it.
    #[error("not a network: its prefix length is wrong, or the address has bits beyond it")]
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
    /// Every name below this one, at any depth; not the name itself.
    Below(String),
    /// A network, with no bits beyond its prefix.
    Network(IpNet),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6(Ipv6Addr),
}

impl Destination {
    /// A name or an IPv4 address as a client writes it, read as strictly as a rule is.
    pub(crate) fn host_of(text: &str) -> Option<Host> {
        host_name(text)
    }
}

impl FromStr for Destination {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fail = |fault| Error::Destination { given: shown(text), fault };
        if text.contains("//") {
            return Err(fail(DestinationFault::Url));
        }
        if text.contains('/') {
            return network(text).map_err(fail);
        }
        if let Some(rest) = text.strip_prefix("*.") {
            let (name, port) = split_port(rest).map_err(fail)?;
            return match host_name(name) {
                Some(Host::Name(name)) => Ok(Self { host: Host::Below(name), port }),
                _ => Err(fail(DestinationFault::Pattern)),
            };
        }
        if text.contains('*') {
            return Err(fail(DestinationFault::Pattern));
        }
        let (host, port) = if text.starts_with('[') {
            let (address, port) = bracketed(text).map_err(fail)?;
            (Host::V6(address.parse().map_err(|_| fail(DestinationFault::Host))?), port)
        } else if text.parse::<Ipv6Addr>().is_ok() {
            return Err(fail(DestinationFault::Brackets));
        } else {
            let (host, port) = split_port(text).map_err(fail)?;
            (host_name(host).ok_or_else(|| fail(DestinationFault::Host))?, port)
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => f.write_str(name)?,
            Host::Below(name) => write!(f, "*.{name}")?,
            Host::Network(IpNet::V4(network)) => network.fmt(f)?,
            Host::Network(IpNet::V6(network)) => write!(f, "[{network}]")?,
            Host::V4(address) => address.fmt(f)?,
            Host::V6(address) => write!(f, "[{address}]")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// What stands in brackets, and the port behind it.
fn bracketed(text: &str) -> Result<(&str, Option<u16>), DestinationFault> {
    let rest = text.strip_prefix('[').ok_or(DestinationFault::Host)?;
    let (inner, rest) = rest.split_once(']').ok_or(DestinationFault::Host)?;
    let port = match rest {
        "" => None,
        _ => Some(port(rest.strip_prefix(':').ok_or(DestinationFault::Port)?)?),
    };
    Ok((inner, port))
}

/// A host, and the port behind it.
fn split_port(text: &str) -> Result<(&str, Option<u16>), DestinationFault> {
    match text.split_once(':') {
        Some((host, digits)) => Ok((host, Some(port(digits)?))),
        None => Ok((text, None)),
    }
}

fn port(digits: &str) -> Result<u16, DestinationFault> {
    // A sign would parse too.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(DestinationFault::Port);
    }
    digits.parse().ok().filter(|port| *port > 0).ok_or(DestinationFault::Port)
}

/// `10.0.0.0/8`, `[fd00::/8]`, either with a port behind it. What is no address before the slash is a URL.
fn network(text: &str) -> Result<Destination, DestinationFault> {
    let (inner, port) = if text.starts_with('[') {
        bracketed(text)?
    } else {
        let (address, rest) = text.split_once('/').ok_or(DestinationFault::Url)?;
        match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => {}
            Ok(IpAddr::V6(_)) => return Err(DestinationFault::Brackets),
            Err(_) => return Err(DestinationFault::Url),
        }
        let (length, port) = split_port(rest)?;
        (&text[..address.len() + 1 + length.len()], port)
    };
    let network: IpNet = inner.parse().map_err(|_| DestinationFault::Network)?;
    if network.trunc() != network {
        return Err(DestinationFault::Network);
    }
    Ok(Destination { host: Host::Network(network), port })
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
            ("*.Example.org", "*.example.org"),
            ("*.example.org:443", "*.example.org:443"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("[FD00::/8]:443", "[fd00::/8]:443"),
            ("[::1/128]", "[::1/128]"),
        ] {
            let destination: Destination = text.parse().unwrap();
            assert_eq!(destination.to_string(), canonical, "{text}");
            assert_eq!(canonical.parse(), Ok(destination));
        }
        for (text, fault) in [
            ("", DestinationFault::Host),
            ("https://example.org", DestinationFault::Url),
            ("example.org/path", DestinationFault::Url),
            ("10.0.0.0/33", DestinationFault::Network),
            ("10.0.0.1/8", DestinationFault::Network),
            ("10.0.0.0/", DestinationFault::Network),
            ("10.0.0.0/8:", DestinationFault::Port),
            ("fd00::/8", DestinationFault::Brackets),
            ("[fd00::1/8]", DestinationFault::Network),
            ("10.0/8", DestinationFault::Url),
            ("*", DestinationFault::Pattern),
            ("*.", DestinationFault::Pattern),
            ("*.127.0.0.1", DestinationFault::Pattern),
            ("*example.org", DestinationFault::Pattern),
            ("a.*.org", DestinationFault::Pattern),
            ("*.*.org", DestinationFault::Pattern),
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
