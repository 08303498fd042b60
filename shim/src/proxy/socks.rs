//! SOCKS5 (RFC 1928), CONNECT only. Names are resolved here: `socks5h` in curl's words.

use std::net::{Ipv4Addr, SocketAddr};

use codeoid_spec::network::Target;
use fast_socks5::server::Socks5ServerProtocol;
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::reach::Fault;
use super::serve::{Conversation, PATIENCE, carry};

/// Serves one client.
pub async fn hold(conversation: Conversation, client: TcpStream) {
    let greeting = async {
        let protocol = Socks5ServerProtocol::accept_no_auth(client).await.ok()?;
        protocol.read_command().await.ok()
    };
    let Ok(Some((protocol, command, asked))) = timeout(PATIENCE, greeting).await else { return };
    let reply = match (command, target(&asked)) {
        (Socks5Command::TCPConnect, Some(target)) => match conversation.reach.connect(&target).await {
            Ok(server) => {
                let bound = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                if let Ok(client) = protocol.reply_success(bound).await {
                    carry(client, server).await;
                }
                return;
            }
            Err(fault) => code(&fault),
        },
        (Socks5Command::TCPConnect, None) => ReplyError::AddressTypeNotSupported,
        _ => ReplyError::CommandNotSupported,
    };
    let _ = protocol.reply_error(&reply).await;
}

fn target(asked: &TargetAddr) -> Option<Target> {
    match asked {
        TargetAddr::Ip(address) if address.port() == 0 => None,
        TargetAddr::Ip(address) => Some(Target::address(address.ip(), address.port())),
        TargetAddr::Domain(name, port) => Target::parse(name, *port),
    }
}

/// The reply for a connection that has not come about (RFC 1928 §6).
fn code(fault: &Fault) -> ReplyError {
    match fault {
        Fault::Refused(_) => ReplyError::ConnectionNotAllowed,
        Fault::Unresolved(_) => ReplyError::HostUnreachable,
        Fault::Unreachable(error) => match error.kind() {
            std::io::ErrorKind::ConnectionRefused => ReplyError::ConnectionRefused,
            std::io::ErrorKind::NetworkUnreachable => ReplyError::NetworkUnreachable,
            std::io::ErrorKind::TimedOut => ReplyError::TtlExpired,
            _ => ReplyError::HostUnreachable,
        },
    }
}
