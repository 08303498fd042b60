//! What stands in for the world on the other side of the network proxy: servers on loopback addresses that no client
//! takes for its own, a name server whose answers change.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Where a listed server listens. Not 127.0.0.1, which `NO_PROXY` keeps away from the proxy.
pub const LISTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Where a server listens that is not listed.
pub const UNLISTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// A server that keeps all that it is sent, and answers every head of a request in the same way.
#[derive(Debug)]
pub struct Web {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Web {
    /// Answers `200 OK` with this text.
    #[must_use]
    pub fn serving(at: Ipv4Addr, port: u16, text: &str) -> Self {
        let length = text.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        Self::answering(at, port, (head + text).into_bytes())
    }

    /// Answers with these bytes. Port 0: any.
    ///
    /// # Panics
    /// If the address cannot be had.
    #[must_use]
    pub fn answering(at: Ipv4Addr, port: u16, answer: Vec<u8>) -> Self {
        let listener = TcpListener::bind((at, port)).unwrap_or_else(|error| panic!("{at}:{port}: {error}"));
        let address = listener.local_addr().expect("it is bound");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&heard);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (all, answer) = (Arc::clone(&all), answer.clone());
                std::thread::spawn(move || hear(client, &answer, &all));
            }
        });
        Self { address, heard }
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Its address and port.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// A URL of it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// What each connection has sent so far, as text.
    ///
    /// # Panics
    /// Never, unless a thread of the server has.
    #[must_use]
    pub fn heard(&self) -> Vec<String> {
        let heard = self.heard.lock().expect("no panic while held");
        heard.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }
}

/// Keeps what a client sends until it ends, and answers once, after the first head.
fn hear(mut client: TcpStream, answer: &[u8], all: &Mutex<Vec<Vec<u8>>>) {
    let number = {
        let mut all = all.lock().expect("no panic while held");
        all.push(Vec::new());
        all.len() - 1
    };
    let _ = client.set_read_timeout(Some(Duration::from_secs(10)));
    let (mut answered, mut buffer) = (false, [0; 65536]);
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let complete = {
            let mut all = all.lock().expect("no panic while held");
            all[number].extend_from_slice(&buffer[..count]);
            all[number].windows(4).any(|end| end == b"\r\n\r\n")
        };
        if complete && !answered {
            answered = client.write_all(answer).is_ok();
            // As `Connection: close` says; what comes still is heard.
            let _ = client.shutdown(std::net::Shutdown::Write);
        }
    }
}

/// A server that sends back all that it was sent, once the client has sent its end: a half-closed connection.
///
/// # Panics
/// If no port can be had.
#[must_use]
pub fn returning(at: Ipv4Addr) -> SocketAddr {
    let listener = TcpListener::bind((at, 0)).unwrap_or_else(|error| panic!("{at}: {error}"));
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                if client.read_to_end(&mut bytes).is_ok() {
                    let _ = client.write_all(&bytes);
                }
            });
        }
    });
    address
}

/// A name server for any name, which gives one address after the other, for no time at all: what an attacker who owns
/// a name lets it lead to (DNS rebinding). Returns whether it could be had: port 53 is for root, and may be taken.
#[must_use]
pub fn rebinding_name_server(at: Ipv4Addr, answers: &'static [Ipv4Addr]) -> bool {
    let Ok(socket) = UdpSocket::bind((at, 53)) else { return false };
    std::thread::spawn(move || {
        let (mut number, mut buffer) = (0, [0; 1500]);
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let Some(mut reply) = question(&buffer[..count]) else { continue };
            // RFC 1035 §4.1: the question's type is A, or the answer is empty.
            if reply[reply.len() - 4..reply.len() - 2] == [0, 1] {
                reply[7] = 1;
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                reply.extend(answers[number % answers.len()].octets());
                number += 1;
            }
            let _ = socket.send_to(&reply, from);
        }
    });
    true
}

/// The head of an answer (RFC 1035 §4.1.1), with the question.
fn question(query: &[u8]) -> Option<Vec<u8>> {
    let mut end = 12;
    while *query.get(end)? != 0 {
        end += usize::from(query[end]) + 1;
    }
    let question = query.get(12..end + 5)?;
    let mut reply = query.get(..2)?.to_vec();
    reply.extend([0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0]);
    reply.extend_from_slice(question);
    Some(reply)
}

/// Speaks to the proxy in the sandbox as it likes. `ask(bytes)` sends them on a connection of their own and
/// returns all that comes back; `connect(HOST:PORT)` is the number that answers a CONNECT.
const CLIENT: &str = "\
import os, socket, sys
PROXY = os.environ['http_proxy'].removeprefix('http://').split(':')
def dial():
    s = socket.create_connection((PROXY[0], int(PROXY[1]))); s.settimeout(10); return s
def drain(s):
    got = []
    try:
        while part := s.recv(65536): got.append(part)
    except OSError: pass
    return b''.join(got)
def ask(data):
    s = dial()
    try: s.sendall(data); s.shutdown(socket.SHUT_WR)
    except OSError: pass
    return drain(s)
def status(got): return got.split(b' ')[1].decode() if got.startswith(b'HTTP/') else 'closed'
def connect(to):
    s = dial(); s.sendall(f'CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n'.encode())
    return status(s.recv(64))
";

/// A Python program that speaks to the proxy: `dial()`, `ask(bytes)`, `status(answer)`, `connect(HOST:PORT)`,
/// `drain(socket)`.
#[must_use]
pub fn proxy_client(program: &str) -> String {
    format!("{CLIENT}{program}")
}
