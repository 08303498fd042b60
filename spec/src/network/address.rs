//! Which addresses are nobody's but this machine's, its network's or its cloud's. A name that is listed never leads to
//! one of them: only a rule that names the address itself does.
//!
//! The lists are IANA's, "IPv4 Special-Purpose Address Registry" and "IPv6 Special-Purpose Address Registry" (RFC 6890).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address is that is not a public one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// `0.0.0.0/8`, `::`: to many a kernel this is the machine itself (RFC 1122 §3.2.1.3).
    Unspecified,
    /// This machine (RFC 1122, RFC 4291).
    Loopback,
    /// A private network (RFC 1918, RFC 4193), and the site-local addresses of old (RFC 3879).
    Private,
    /// Shared with other customers of a provider (RFC 6598); some clouds have their metadata there.
    Shared,
    /// This link (RFC 3927, RFC 4291); most clouds have their metadata there.
    LinkLocal,
    /// A cloud's metadata service at an address that looks public.
    Metadata,
    /// Many at once (RFC 5771, RFC 4291).
    Multicast,
    /// Everybody on the link (RFC 919).
    Broadcast,
    /// One of this machine's own.
    Own,
    /// For documentation, benchmarks, protocols of the IETF, or for later.
    Reserved,
    /// An IPv6 address that stands for an IPv4 address which is not public, or that cannot be judged (RFC 3056,
    /// RFC 4380, RFC 6052, RFC 8215).
    Embedded,
}

impl fmt::Display for Special {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "an unspecified address",
            Self::Loopback => "a loopback address",
            Self::Private => "a private address",
            Self::Shared => "an address of a provider's own network",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "the address of a cloud's metadata service",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "the broadcast address",
            Self::Own => "an address of this machine",
            Self::Reserved => "a reserved address",
            Self::Embedded => "an IPv6 address that stands for an IPv4 address which is not public",
        })
    }
}

/// What an address is, if it is not public. An IPv4 address that is written as an IPv6 address (RFC 4291 §2.5.5.2) is
/// judged as what it is.
#[must_use]
pub fn special(address: IpAddr) -> Option<Special> {
    match address.to_canonical() {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

/// Azure's virtual public address, by which its machines reach the platform's agent and metadata
/// (learn.microsoft.com, "What is IP address 168.63.129.16?").
const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

fn special_v4(address: Ipv4Addr) -> Option<Special> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, ..) => Some(Special::Unspecified),
        (127, ..) => Some(Special::Loopback),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some(Special::Private),
        (100, 64..=127, _) => Some(Special::Shared),
        (169, 254, _) => Some(Special::LinkLocal),
        _ if address == AZURE => Some(Special::Metadata),
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18..=19, _) | (198, 51, 100) | (203, 0, 113) => {
            Some(Special::Reserved)
        }
        (224..=239, ..) => Some(Special::Multicast),
        (240..=255, ..) if address == Ipv4Addr::BROADCAST => Some(Special::Broadcast),
        (240..=255, ..) => Some(Special::Reserved),
        _ => None,
    }
}

fn special_v6(address: Ipv6Addr) -> Option<Special> {
    let segments = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        special_v4(Ipv4Addr::new(a, b, c, d)).map(|_| Special::Embedded)
    };
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Special::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Special::Loopback),
        // NAT64: a gateway makes the IPv4 address of it that stands at its end (RFC 6052 §2.1).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        // 6to4 (RFC 3056 §2).
        [0x2002, high, low, ..] => v4(high, low),
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Some(Special::Private),
        [0xfe80..=0xfebf, ..] => Some(Special::LinkLocal),
        [0xff00..=0xffff, ..] => Some(Special::Multicast),
        // Protocols of the IETF, Teredo among them, whose IPv4 addresses may lead anywhere (RFC 2928, RFC 4380).
        [0x2001, 0..=0x1ff, ..] => Some(Special::Reserved),
        // Documentation (RFC 3849, RFC 9637).
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(Special::Reserved),
        [0x2000..=0x3fff, ..] => None,
        // IPv4-compatible addresses, NAT64 of a network's own, and whatever is not given out yet.
        [0, 0, 0, 0, 0, 0, ..] | [0x64, 0xff9b, ..] => Some(Special::Embedded),
        _ => Some(Special::Reserved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_public_is_known_in_every_spelling() {
        for (special_one, addresses) in [
            (Special::Unspecified, &["0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"][..]),
            (
                Special::Loopback,
                &["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"],
            ),
            (
                Special::Private,
                &["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fd00::1", "fc00::1", "fec0::1"],
            ),
            (Special::Private, &["::ffff:10.0.0.1", "::ffff:c0a8:101", "fd00:ec2::254"]),
            (Special::Shared, &["100.64.0.1", "100.127.255.255", "100.100.100.200"]),
            (
                Special::LinkLocal,
                &["169.254.169.254", "169.254.0.1", "fe80::1", "febf::1", "::ffff:169.254.169.254"],
            ),
            (Special::Metadata, &["168.63.129.16", "::ffff:168.63.129.16"]),
            (Special::Multicast, &["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"]),
            (Special::Broadcast, &["255.255.255.255"]),
            (
                Special::Reserved,
                &[
                    "192.0.0.1",
                    "192.0.0.192",
                    "192.0.2.1",
                    "192.88.99.1",
                    "198.18.0.1",
                    "198.19.255.255",
                    "198.51.100.1",
                    "203.0.113.1",
                    "240.0.0.1",
                    "254.1.2.3",
                    "2001:db8::1",
                    "3fff::1",
                    "2001::1",
                    "2001:2::1",
                    "2001:1ff::1",
                    "100::1",
                    "4000::1",
                    "5f00::1",
                    "e000::1",
                ],
            ),
            (
                Special::Embedded,
                &[
                    "64:ff9b::10.0.0.1",
                    "64:ff9b::127.0.0.1",
                    "64:ff9b::169.254.169.254",
                    "64:ff9b:1::1",
                    "2002:7f00:1::1",
                    "2002:a00:1::",
                    "2002:c0a8:101::1",
                    "::10.0.0.1",
                    "::8.8.8.8",
                ],
            ),
        ] {
            for address in addresses {
                assert_eq!(special(address.parse().unwrap()), Some(special_one), "{address}");
            }
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "168.63.129.15",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.1",
            "192.0.1.1",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:200::1",
            "2001:4860:4860::8888",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert_eq!(special(address.parse().unwrap()), None, "{address}");
        }
    }
}
