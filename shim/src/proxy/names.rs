//! Names to addresses, as the host resolves them: `/etc/hosts`, then the name servers of `/etc/resolv.conf`. Not
//! getaddrinfo(3), which waits in threads and, in a statically linked program, loads the host's libraries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::system_conf::read_system_conf;
use hickory_resolver::{Resolver, TokioResolver};

/// How long a name may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// More addresses of one name than anybody would try.
const MOST: usize = 16;

/// What says how the host resolves names.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// When the files were changed last, and which they were.
type Stamp = [Option<(u64, u64, i64, i64)>; 2];

/// The resolver, as the host's files have it.
#[derive(Default)]
pub struct Names {
    known: Mutex<Option<(Stamp, Arc<TokioResolver>)>>,
}

impl Names {
    /// The addresses of a name; empty where there is none. `own`: this machine's addresses.
    pub async fn look_up(&self, name: &str, own: &[IpAddr]) -> Result<Vec<IpAddr>, String> {
        if is_localhost(name) {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        // With the final dot: no search domain makes another name of it than the one that is listed.
        let name = Name::from_ascii(format!("{name}.")).map_err(|error| error.to_string())?;
        let mut resolver = self.current()?;
        let v4 = |address: &&IpAddr| address.is_ipv4() && !address.is_loopback();
        if !own.iter().any(|address| v4(&address)) {
            resolver = Arc::new(build(LookupIpStrategy::Ipv6thenIpv4)?);
        }
        match tokio::time::timeout(PATIENCE, resolver.lookup_ip(name)).await {
            Ok(Ok(found)) => Ok(found.iter().take(MOST).collect()),
            Ok(Err(error)) if error.is_no_records_found() => Ok(Vec::new()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no name server has answered".to_owned()),
        }
    }

    /// The resolver, made anew where the host's files have changed: networks come and go while a turn runs.
    fn current(&self) -> Result<Arc<TokioResolver>, String> {
        let stamp = FILES.map(|path| {
            let meta = std::fs::metadata(Path::new(path)).ok()?;
            Some((meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec()))
        });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, resolver)) = &*known
            && *at == stamp
        {
            return Ok(Arc::clone(resolver));
        }
        let resolver = Arc::new(build(LookupIpStrategy::Ipv4thenIpv6)?);
        *known = Some((stamp, Arc::clone(&resolver)));
        Ok(resolver)
    }
}

/// Whether a name is this machine by definition (RFC 6761 §6.3): no name server is asked.
pub fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

fn build(strategy: LookupIpStrategy) -> Result<TokioResolver, String> {
    // Without the file, or without a server in it, the one of this machine is asked (resolv.conf(5)).
    let (config, mut options) = read_system_conf().unwrap_or_else(|_| {
        let local = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
        (ResolverConfig::from_parts(None, Vec::new(), vec![local]), ResolverOpts::default())
    });
    options.ip_strategy = strategy;
    // What an answer was judged by is what is connected to; the next connection asks again.
    options.cache_size = 0;
    Resolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
        .map_err(|error| error.to_string())
}
