//! The network of a turn with `network: allowlist`: an empty network namespace, and in it the socket of a proxy that
//! runs outside. What the proxy lets through is decided here, by what the policy lists and by what an address is.
//!
//! The attacker is the turn: it chooses what it asks for, may spell it in every way there is, and may own the name
//! server of a name that is listed. So a name is never enough to reach an address that is not public.

pub mod address;
mod rules;

use std::net::{Ipv4Addr, SocketAddrV4};

pub use rules::{Rule, Rules, Target};

/// Where the proxy listens in the turn's network namespace, which is empty, so that every port is free: above the ports
/// that the kernel gives away by itself (ip(7), `ip_local_port_range`), and not one that a service is known by.
pub const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 61080);

/// The variables by which programs find the proxy; each is also set in lower case. `ALL_PROXY` says HTTP and not SOCKS,
/// because clients without SOCKS refuse to start when they read the latter; the socket speaks both.
pub const PROXY_VARIABLES: [&str; 3] = ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"];

/// What is reached without the proxy: the turn's own servers.
pub const NO_PROXY: &str = "localhost,127.0.0.1,::1";
