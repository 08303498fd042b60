//! HTTP/1 (RFC 9110, RFC 9112): CONNECT, and the forwarding of plain requests. Each request is judged by itself, gets a
//! connection of its own, and is written anew from what was understood of it, so that nothing that two parsers read
//! differently arrives at the server (RFC 9112 §11.2, "Request Smuggling").

use std::convert::Infallible;
use std::io::ErrorKind;

use codeoid_spec::network::Target;
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Uri, client, server};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::reach::Fault;
use super::serve::{Conversation, PATIENCE, carry};

type Answer = Response<Either<Full<Bytes>, Incoming>>;

/// The longest head of a request, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Ports of plain requests that name none (RFC 9110 §4.2.1).
const HTTP_PORT: u16 = 80;

/// What concerns the connection and not the request, beside what `Connection` names (RFC 9110 §7.6.1; the last two are
/// for proxies, and `Expect` has been answered by then).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
];

/// Serves one client.
pub async fn hold(conversation: Conversation, client: TcpStream) {
    let service = service_fn(move |request| {
        let conversation = conversation.clone();
        async move { Ok::<_, Infallible>(answer(&conversation, request).await) }
    });
    let _ = server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_header_size(MAX_HEAD)
        .max_buf_size(2 * MAX_HEAD)
        .half_close(true)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades()
        .await;
}

async fn answer(conversation: &Conversation, request: Request<Incoming>) -> Answer {
    let asked = if request.method() == Method::CONNECT {
        request.uri().authority().filter(|_| request.uri().scheme().is_none()).and_then(|to| target(to, None))
    } else {
        let plain = request.uri().scheme_str() == Some("http");
        request.uri().authority().filter(|_| plain).and_then(|to| target(to, Some(HTTP_PORT)))
    };
    let Some(asked) = asked else {
        return say(
            StatusCode::BAD_REQUEST,
            "http_request_error",
            "this is a proxy: it takes CONNECT HOST:PORT, and requests for http://HOST/…",
        );
    };
    let server = match conversation.reach.connect(&asked).await {
        Ok(server) => server,
        Err(fault) => return explain(&asked, &fault),
    };
    if request.method() == Method::CONNECT {
        let held = conversation.clone();
        tokio::spawn(async move {
            tunnel(request, server).await;
            drop(held);
        });
        return Response::new(Either::Left(Full::default()));
    }
    match forward(request, server).await {
        // Nobody has asked it to: `Upgrade` is not handed on.
        Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
            say(StatusCode::BAD_GATEWAY, "http_protocol_error", &format!("{asked}: it changes the protocol"))
        }
        Ok(response) => response.map(Either::Right),
        Err(error) => say(StatusCode::BAD_GATEWAY, "http_protocol_error", &format!("{asked}: {error}")),
    }
}

/// The destination that an authority names. Not one with a user in it: what stands before the `@` is for people to
/// misread.
fn target(authority: &Authority, default: Option<u16>) -> Option<Target> {
    let text = authority.as_str();
    let rest = text.strip_prefix(authority.host())?;
    let port = match rest {
        "" => default?,
        _ => rest.strip_prefix(':').filter(|port| port.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?,
    };
    Target::parse(authority.host(), port)
}

async fn tunnel(request: Request<Incoming>, mut server: TcpStream) {
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else { return };
    // What the client has sent without waiting for the answer.
    if server.write_all(&parts.read_buf).await.is_ok() {
        carry(parts.io.into_inner(), server).await;
    }
}

async fn forward(request: Request<Incoming>, server: TcpStream) -> Result<Response<Incoming>, hyper::Error> {
    let (mut sender, connection) = client::conn::http1::Builder::new()
        .max_buf_size(2 * MAX_HEAD)
        .handshake(TokioIo::new(server))
        .await?;
    tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    // The host that was judged, whatever the client's own header says (RFC 9112 §3.2.2).
    let host = parts.uri.authority().and_then(|to| HeaderValue::from_str(to.as_str()).ok());
    strip(&mut parts.headers);
    if let Some(host) = host {
        parts.headers.insert(header::HOST, host);
    }
    parts.headers.append(header::VIA, HeaderValue::from_static("1.1 codeoid"));
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    parts.uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    parts.version = hyper::Version::HTTP_11;
    let mut response = sender.send_request(Request::from_parts(parts, body)).await?;
    strip(response.headers_mut());
    Ok(response)
}

/// Takes away what concerns the connection only.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // What says how long the body is, is not a client's to take away.
    for name in named.iter().filter(|name| **name != header::CONTENT_LENGTH && **name != header::HOST) {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection"] {
        headers.remove(name);
    }
}

/// The answer where there is no connection.
fn explain(asked: &Target, fault: &Fault) -> Answer {
    match fault {
        Fault::Refused(refusal) => {
            let text = format!(
                "{asked} is out of this sandbox's reach: {}\nhint: its owner can let it through with `--allow {}`, or \
                 list it as network.allow in ~/.codeoid/config.json",
                refusal.why, refusal.allow
            );
            say(StatusCode::FORBIDDEN, "http_request_denied", &text)
        }
        Fault::Unresolved(why) => say(StatusCode::BAD_GATEWAY, "dns_error", &format!("{asked}: {why}")),
        Fault::Unreachable(error) => {
            let (status, word) = match error.kind() {
                ErrorKind::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "connection_timeout"),
                ErrorKind::ConnectionRefused => (StatusCode::BAD_GATEWAY, "connection_refused"),
                _ => (StatusCode::BAD_GATEWAY, "destination_ip_unroutable"),
            };
            say(status, word, &format!("{asked}: {error}"))
        }
    }
}

/// An answer of the proxy's own; the word is for programs (RFC 9209 §2.3).
fn say(status: StatusCode, word: &'static str, text: &str) -> Answer {
    let mut response = Response::new(Either::Left(Full::from(format!("codeoid-shim: {text}\n"))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if let Ok(value) = HeaderValue::from_str(&format!("codeoid-shim; error={word}")) {
        headers.insert("proxy-status", value);
    }
    response
}
