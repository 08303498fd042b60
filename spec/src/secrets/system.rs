//! Secrets outside the home. An ordinary user cannot read most of them; a turn that runs as root could, because
//! it owns them (without a single capability).

use super::{Place, Secret};

const fn system(path: &'static str, why: &'static str) -> Secret {
    Secret { path, why, place: Place::System }
}

const WHY_PASSWORDS: &str = "the users' password hashes";
const WHY_NETWORKS: &str = "keys and passwords of networks";
const WHY_CERTIFICATES: &str = "private keys of certificates";
const WHY_DAEMON: &str = "a daemon's own files: images, volumes and keys of all its containers or machines";
const WHY_MAIL: &str = "mail, and with it every password reset";
const WHY_KEYCHAIN: &str = "the system's keychain";

pub(super) const SECRETS: &[Secret] = &[
    system("/etc/shadow", WHY_PASSWORDS),
    system("/etc/shadow-", WHY_PASSWORDS),
    system("/etc/gshadow", WHY_PASSWORDS),
    system("/etc/gshadow-", WHY_PASSWORDS),
    system("/etc/security/opasswd", WHY_PASSWORDS),
    system("/etc/sudoers", "who may become root, and how"),
    system("/etc/sudoers.d", "who may become root, and how"),
    system("/etc/doas.conf", "who may become root, and how"),
    system("/etc/ssh/ssh_host_*_key", "this machine's identity for ssh"),
    system("/etc/ssl/private", WHY_CERTIFICATES),
    system("/etc/pki/tls/private", WHY_CERTIFICATES),
    system("/etc/letsencrypt/accounts", WHY_CERTIFICATES),
    system("/etc/letsencrypt/archive", WHY_CERTIFICATES),
    system("/etc/letsencrypt/live", WHY_CERTIFICATES),
    system("/etc/krb5.keytab", "this machine's identity for Kerberos"),
    system("/etc/credstore", "credentials of services (systemd.exec(5))"),
    system("/etc/credstore.encrypted", "credentials of services (systemd.exec(5))"),
    system("/var/lib/systemd/credential.secret", "the key of all encrypted credentials (systemd-creds(1))"),
    system("/etc/cryptsetup-keys.d", "keys of encrypted disks"),
    system("/etc/luks-keys", "keys of encrypted disks"),
    system("/etc/NetworkManager/system-connections", WHY_NETWORKS),
    system("/etc/netplan", WHY_NETWORKS),
    system("/etc/wpa_supplicant", WHY_NETWORKS),
    system("/var/lib/iwd", WHY_NETWORKS),
    system("/etc/wireguard", WHY_NETWORKS),
    system("/etc/openvpn", WHY_NETWORKS),
    system("/etc/ipsec.secrets", WHY_NETWORKS),
    system("/etc/ipsec.d/private", WHY_NETWORKS),
    system("/etc/swanctl", WHY_NETWORKS),
    system("/etc/ppp/chap-secrets", WHY_NETWORKS),
    system("/etc/ppp/pap-secrets", WHY_NETWORKS),
    system("/var/lib/tailscale", WHY_NETWORKS),
    system("/etc/apt/auth.conf", "passwords of package archives"),
    system("/etc/apt/auth.conf.d", "passwords of package archives"),
    system("/etc/mysql/debian.cnf", "the database administrator's password"),
    system("/etc/kubernetes", "the cluster's keys and its administrator's login"),
    system("/etc/rancher", "the cluster's keys and its administrator's login"),
    system("/var/lib/rancher", "the cluster's keys and its administrator's login"),
    system("/var/lib/etcd", "the cluster's whole state"),
    system("/var/lib/kubelet", "the keys and secrets of all pods of this node"),
    system("/var/lib/docker", WHY_DAEMON),
    system("/var/lib/containerd", WHY_DAEMON),
    system("/var/lib/containers", WHY_DAEMON),
    system("/var/lib/libvirt", WHY_DAEMON),
    system("/var/lib/lxd", WHY_DAEMON),
    system("/var/lib/incus", WHY_DAEMON),
    system("/var/snap/docker", WHY_DAEMON),
    system("/var/snap/lxd", WHY_DAEMON),
    system("/var/snap/microk8s", WHY_DAEMON),
    system("/var/snap/multipass", WHY_DAEMON),
    system("/var/lib/samba/private", "password hashes of a domain"),
    system("/var/lib/sss/db", "password hashes of a domain"),
    system("/var/lib/sss/secrets", "secrets of a domain"),
    system("/var/lib/cloud", "what the cloud told this machine at its start, passwords included"),
    system("/var/spool/cron", "the users' timed commands, with whatever passwords those hold"),
    system("/var/mail", WHY_MAIL),
    system("/var/spool/mail", WHY_MAIL),
    system("/Library/Keychains", WHY_KEYCHAIN),
    system("/private/etc/master.passwd", WHY_PASSWORDS),
    system("/private/var/db/dslocal/nodes", WHY_PASSWORDS),
    system("/root", "the administrator's home; not hidden where it is the caller's own"),
    system("/var/root", "the administrator's home; not hidden where it is the caller's own"),
];
