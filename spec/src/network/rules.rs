//! What the policy lists, compared with what a turn asks for.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::policy::{Destination, Host, value};

use super::address::{Special, special};

/// One listed destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// As the policy has it.
    pub text: String,
    destination: Destination,
}

/// All that is listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// What a turn asks for: a name or an address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// A name, in lower case, without the final dot.
    Name(String, u16),
    /// An address.
    Address(SocketAddr),
}

impl Target {
    /// Reads a host as a client writes it: a name, an IPv4 address, or an IPv6 address, in brackets or not. `None` for
    /// whatever two resolvers could read differently (`127.1`, `0x7f.1`), and for port 0.
    #[must_use]
    pub fn parse(host: &str, port: u16) -> Option<Self> {
        if port == 0 {
            return None;
        }
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(host).parse::<std::net::Ipv6Addr>() {
            return Some(Self::address(address.into(), port));
        }
        match Destination::host_of(host)? {
            Host::Name(name) => Some(Self::Name(name, port)),
            Host::V4(address) => Some(Self::address(address.into(), port)),
            _ => None,
        }
    }

    /// An address, an IPv4 address in IPv6 notation as what it is.
    #[must_use]
    pub fn address(address: IpAddr, port: u16) -> Self {
        Self::Address(SocketAddr::new(address.to_canonical(), port))
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Name(_, port) => *port,
            Self::Address(address) => address.port(),
        }
    }
}

/// As a rule would have it.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl Rules {
    /// Reads a list of destinations.
    ///
    /// # Errors
    /// When one of them is none.
    pub fn parse<'a>(list: impl IntoIterator<Item = &'a str>) -> Result<Self, value::Error> {
        let rule = |text: &str| Ok(Rule { text: text.to_owned(), destination: text.parse()? });
        list.into_iter().map(rule).collect::<Result<_, _>>().map(Self)
    }

    /// The rule that lists what is asked for. For a name this is not enough: see [`Rules::judge`].
    #[must_use]
    pub fn find(&self, target: &Target) -> Option<&Rule> {
        match target {
            Target::Address(address) => self.find_address(*address),
            Target::Name(name, port) => self.0.iter().find(|rule| {
                let below = |parent: &String| {
                    name.strip_suffix(parent.as_str())
                        .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
                };
                let hit = match &rule.destination.host {
                    Host::Name(listed) => listed == name,
                    Host::Below(parent) => below(parent),
                    Host::Network(_) | Host::V4(_) | Host::V6(_) => false,
                };
                hit && rule.admits_port(*port)
            }),
        }
    }

    fn find_address(&self, address: SocketAddr) -> Option<&Rule> {
        let ip = address.ip().to_canonical();
        self.0.iter().find(|rule| {
            let hit = match &rule.destination.host {
                Host::V4(listed) => ip == IpAddr::from(*listed),
                Host::V6(listed) => ip == IpAddr::from(*listed).to_canonical(),
                Host::Network(network) => network.contains(&ip),
                Host::Name(_) | Host::Below(_) => false,
            };
            hit && rule.admits_port(address.port())
        })
    }

    /// Judges an address that a listed name has led to: one that is not public has to be listed itself, or the name's
    /// owner could send the turn wherever they like (DNS rebinding). `own` are this machine's addresses.
    ///
    /// # Errors
    /// What the address is.
    pub fn judge(&self, address: SocketAddr, own: &[IpAddr]) -> Result<(), Special> {
        let ip = address.ip().to_canonical();
        if self.find_address(address).is_some() {
            return Ok(());
        }
        match special(ip) {
            Some(special) => Err(special),
            None if own.iter().any(|own| own.to_canonical() == ip) => Err(Special::Own),
            None => Ok(()),
        }
    }
}

impl Rule {
    fn admits_port(&self, port: u16) -> bool {
        self.destination.port.is_none_or(|only| only == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(list: &[&str]) -> Rules {
        Rules::parse(list.iter().copied()).unwrap()
    }

    fn found(rules: &Rules, host: &str, port: u16) -> bool {
        Target::parse(host, port).is_some_and(|target| rules.find(&target).is_some())
    }

    #[test]
    fn names_are_compared_whole_or_below_a_dot() {
        let rules = rules(&["example.org", "*.pkg.dev", "one.port:443"]);
        for (host, port) in [
            ("example.org", 1),
            ("EXAMPLE.ORG.", 80),
            ("a.pkg.dev", 80),
            ("a.b.pkg.dev", 80),
            ("one.port", 443),
        ] {
            assert!(found(&rules, host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("www.example.org", 80),
            ("notexample.org", 80),
            ("example.org.evil", 80),
            ("pkg.dev", 80),
            (".pkg.dev", 80),
            ("evilpkg.dev", 80),
            ("one.port", 80),
            ("example.org", 0),
            ("example.org:80", 80),
            ("user@example.org", 80),
            ("example.org/", 80),
            ("example.org ", 80),
            ("example.org\0", 80),
        ] {
            assert!(!found(&rules, host, port), "{host}:{port}");
        }
    }

    #[test]
    fn an_address_needs_a_rule_for_addresses() {
        let rules =
            rules(&["8.8.8.8.example", "10.0.0.0/8:80", "[fd00::/8]", "1.1.1.1", "[::ffff:9.9.9.9]:53"]);
        for (host, port) in [
            ("10.1.2.3", 80),
            ("::ffff:10.1.2.3", 80),
            ("[::ffff:a01:203]", 80),
            ("[fd00::1]", 9),
            ("1.1.1.1", 9),
            ("9.9.9.9", 53),
        ] {
            assert!(found(&rules, host, port), "{host}:{port}");
        }
        for (host, port) in [
            ("10.1.2.3", 81),
            ("8.8.8.8", 80),
            ("1.1", 80),
            ("0x1010101", 80),
            ("16843009", 80),
            ("[fe80::1%eth0]", 80),
        ] {
            assert!(!found(&rules, host, port), "{host}:{port}");
        }
    }

    #[test]
    fn a_name_does_not_lead_to_an_address_that_is_not_public() {
        let rules = rules(&["*.evil.example", "10.0.0.5:443"]);
        let judge = |address: &str| rules.judge(address.parse().unwrap(), &["5.5.5.5".parse().unwrap()]);
        assert_eq!(judge("8.8.8.8:80"), Ok(()));
        assert_eq!(judge("127.0.0.1:80"), Err(Special::Loopback));
        assert_eq!(judge("[::ffff:127.0.0.1]:80"), Err(Special::Loopback));
        assert_eq!(judge("5.5.5.5:80"), Err(Special::Own));
        assert_eq!(judge("10.0.0.5:443"), Ok(()));
        assert_eq!(judge("10.0.0.5:80"), Err(Special::Private));
        assert_eq!(judge("[64:ff9b::10.0.0.5]:443"), Err(Special::Embedded));
    }
}
