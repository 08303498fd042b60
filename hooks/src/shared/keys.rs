//! Which changes of a repository's configuration are harmless.
//!
//! The keys that make git run something or look elsewhere grow with every release, so this is a list of what
//! passes; everything else goes back to what it was. What passes is what people and their tools change while a
//! turn runs: branches and their upstreams, remotes, names, submodules, maintenance, how things are shown.
//! A key of the list can still carry a value that runs something (`ext::` URLs, a remote that is a directory
//! which the turn wrote): such a value does not pass.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::config::{self, File, Name, Variable};
use crate::entry;

/// What a value is judged against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    /// What a turn can write: a remote there would run the turn's hooks.
    pub(crate) writable: &'a [PathBuf],
    /// The URLs of remotes that the repository had before the turn: a submodule may have the same.
    pub(crate) urls: &'a [Vec<u8>],
    /// The git dir that the configuration belongs to.
    pub(crate) git_dir: &'a Path,
    /// Directories that a new submodule's `core.worktree` may lie below. Empty for the main git dir.
    pub(crate) tops: &'a [PathBuf],
    /// Whether the repository has a `reftable/tables.list`.
    pub(crate) reftable: bool,
}

impl Context<'_> {
    fn takes(&self, url: &[u8]) -> bool {
        self.urls.iter().any(|known| known == url) || harmless_url(url, self.writable)
    }
}

/// The URLs of all remotes in a configuration.
pub(crate) fn remote_urls(bytes: &[u8]) -> Vec<Vec<u8>> {
    let file = File::parse(bytes).unwrap_or_default();
    let remotes = file.variables().iter().filter(|v| v.name.section == "remote" && v.name.key == "url");
    remotes.filter_map(|v| v.value.clone()).collect()
}

/// What is to be done about a configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// What the file has to be, where that is not what it is.
    pub(crate) bytes: Option<Vec<u8>>,
    /// What does not pass, in words.
    pub(crate) undone: Vec<String>,
    /// What passes, but has to be said.
    pub(crate) reported: Vec<String>,
}

/// A configuration file and its `config.worktree`, each as it was or is; `None` where it is absent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pair<'a> {
    pub(crate) shared: Option<&'a [u8]>,
    pub(crate) own: Option<&'a [u8]>,
}

/// Judges a git dir's `config` and `config.worktree` together: git moves `core.bare` and `core.worktree` from
/// the one to the other when `extensions.worktreeConfig` is turned on (git-worktree(1), "CONFIGURATION FILE").
pub(crate) fn judge_pair(before: Pair<'_>, now: Pair<'_>, context: &Context<'_>) -> (Verdict, Verdict) {
    let parsed = |bytes: Option<&[u8]>| File::parse(bytes.unwrap_or_default()).unwrap_or_default();
    let (shared_before, shared_now) = (parsed(before.shared), parsed(now.shared));
    let (own_before, own_now) = (parsed(before.own), parsed(now.own));
    let moved: Vec<Name> = ["bare", "worktree"]
        .map(|key| Name { section: "core".to_owned(), subsection: None, key: key.to_owned() })
        .into_iter()
        .filter(|name| {
            let was = values(&shared_before, name);
            !was.is_empty()
                && was == values(&own_now, name)
                && values(&shared_now, name).is_empty()
                && values(&own_before, name).is_empty()
                && shared_now.is_true("extensions", "worktreeconfig")
        })
        .collect();
    let remotes = remotes(&shared_before, &shared_now, context);
    (
        judge(before.shared, now.shared, &moved, &remotes, context),
        judge(before.own, now.own, &moved, &remotes, context),
    )
}

/// Judges one configuration file on its own (an entry's `config.worktree`). `shared` is the repository's
/// configuration as it is now, for the names of its remotes.
pub(crate) fn judge_one(
    before: Option<&[u8]>,
    now: Option<&[u8]>,
    shared: &[u8],
    context: &Context<'_>,
) -> Verdict {
    let shared = File::parse(shared).unwrap_or_default();
    judge(before, now, &[], &remotes(&shared, &shared, context), context)
}

fn values(file: &File, name: &Name) -> Vec<Option<Vec<u8>>> {
    file.values(name).into_iter().map(|v| v.value.clone()).collect()
}

/// The remotes that will have a URL when the judgement is done.
fn remotes(before: &File, now: &File, context: &Context<'_>) -> BTreeSet<Vec<u8>> {
    let urls = |file: &File| {
        file.variables()
            .iter()
            .filter(|v| v.name.section == "remote" && v.name.key == "url")
            .filter_map(|v| Some((v.name.subsection.clone()?, v.value.clone()?)))
            .collect::<Vec<_>>()
    };
    let known = urls(before);
    urls(now)
        .into_iter()
        .filter(|pair| known.contains(pair) || context.takes(&pair.1))
        .map(|(name, _)| name)
        .collect()
}

fn judge(
    before: Option<&[u8]>,
    now: Option<&[u8]>,
    moved: &[Name],
    remotes: &BTreeSet<Vec<u8>>,
    context: &Context<'_>,
) -> Verdict {
    if before == now {
        return Verdict::default();
    }
    let before_bytes = before.unwrap_or_default();
    let bytes = now.unwrap_or_default();
    let back =
        |why: String| Verdict { bytes: Some(before_bytes.to_vec()), undone: vec![why], reported: Vec::new() };
    let file = match File::parse(bytes) {
        Ok(file) => file,
        Err(error) => return back(error.to_string()),
    };
    // Only a file that git refuses does not parse, and then nothing in it is anybody's setting.
    let known = File::parse(before_bytes).unwrap_or_default();
    let names: BTreeSet<&Name> = known.variables().iter().chain(file.variables()).map(|v| &v.name).collect();
    let mut verdict = Verdict::default();
    let (mut remove, mut add): (Vec<usize>, Vec<Variable>) = (Vec::new(), Vec::new());
    let mut undone: Vec<&Name> = Vec::new();
    for name in names.into_iter().filter(|name| !moved.contains(name)) {
        let was = values(&known, name);
        let is = values(&file, name);
        if was == is {
            continue;
        }
        let exists = before.is_some() && name.section == "extensions" && name.key == "objectformat";
        let rule = if exists { Rule::Guarded } else { rule(name) };
        let passes = |value: &Option<Vec<u8>>| {
            was.contains(value) || accepts(rule, name, value.as_deref(), remotes, context)
        };
        if rule != Rule::Guarded && is.iter().all(passes) {
            verdict.reported.extend(redirected(name, &was, &is));
            continue;
        }
        undone.push(name);
        verdict.undone.push(describe(name, &was, &is));
        let at = |index: &usize| file.variables()[*index].name == *name;
        let positions = (0..file.variables().len()).filter(at);
        if rule == Rule::Guarded {
            remove.extend(positions);
            add.extend(known.values(name).into_iter().cloned());
        } else {
            remove.extend(positions.filter(|index| !passes(&file.variables()[*index].value)));
            add.extend(known.values(name).into_iter().filter(|v| !is.contains(&v.value)).cloned());
        }
    }
    if verdict.undone.is_empty() {
        return verdict;
    }
    let mended = config::with(config::without(bytes, &file, &remove), &add);
    // What was mended has to read as intended: the guarded keys as they were. Else all goes back.
    let reads = File::parse(&mended).is_ok_and(|mended| {
        undone.iter().all(|name| {
            let is = values(&mended, name);
            rule(name) != Rule::Guarded && is.iter().all(|v| values(&known, name).contains(v))
                || is == values(&known, name)
        })
    });
    verdict.bytes = Some(if reads { mended } else { before_bytes.to_vec() });
    verdict
}

fn describe(name: &Name, was: &[Option<Vec<u8>>], is: &[Option<Vec<u8>>]) -> String {
    match (was.is_empty(), is.is_empty()) {
        (true, _) => format!("{name} was added ({})", shown(is)),
        (_, true) => format!("{name} was removed"),
        _ => format!("{name} was changed to {}", shown(is)),
    }
}

fn shown(values: &[Option<Vec<u8>>]) -> String {
    let text = |value: &Option<Vec<u8>>| {
        let text: String =
            String::from_utf8_lossy(value.as_deref().unwrap_or(b"true")).chars().take(80).collect();
        format!("\"{}\"", text.escape_debug())
    };
    values.iter().take(3).map(text).collect::<Vec<_>>().join(", ")
}

/// A remote that now is elsewhere: harmless to this machine, but the next push goes there.
fn redirected(name: &Name, was: &[Option<Vec<u8>>], is: &[Option<Vec<u8>>]) -> Option<String> {
    let address = name.section == "remote" && ["url", "pushurl"].contains(&name.key.as_str());
    (address && !was.is_empty() && !is.is_empty()).then(|| describe(name, was, is))
}

/// Which values of a key pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// None: it stays as it was.
    Guarded,
    /// Any.
    Free,
    /// A boolean.
    Bool,
    /// One of these, whatever the case.
    OneOf(&'static [&'static str]),
    /// Exactly this.
    Exactly(&'static str),
    /// The name of a remote that has a URL, or `.`.
    Remote,
    /// A URL that runs nothing here.
    Url,
    /// A refspec that writes no branch.
    Fetch,
    /// The checkout of a submodule.
    Top,
    /// The ref storage that is really there.
    Storage,
}

const CORE_BOOLS: &[&str] = &[
    "filemode",
    "ignorecase",
    "precomposeunicode",
    "symlinks",
    "quotepath",
    "sparsecheckout",
    "sparsecheckoutcone",
    "commitgraph",
    "multipackindex",
    "preloadindex",
    "trustctime",
    "splitindex",
    // A program's name as its value would be run; true and false mean git's own daemon.
    "fsmonitor",
];
const CORE_FREE: &[&str] = &[
    "abbrev",
    "autocrlf",
    "bigfilethreshold",
    "checkstat",
    "compression",
    "eol",
    "logallrefupdates",
    "loosecompression",
    "safecrlf",
    "untrackedcache",
    "whitespace",
];

/// Keys without a subsection that may have any value.
const FREE: &[(&str, &[&str])] = &[
    ("author", &["name", "email"]),
    ("branch", &["sort", "autosetupmerge", "autosetuprebase"]),
    ("checkout", &["guess", "workers", "thresholdforparallelism"]),
    ("commit", &["verbose", "cleanup"]),
    ("committer", &["name", "email"]),
    ("commitgraph", &["generationversion", "maxnewfilters", "readchangedpaths", "changedpaths"]),
    (
        "diff",
        &[
            "algorithm",
            "colormoved",
            "colormovedws",
            "context",
            "indentheuristic",
            "interhunkcontext",
            "mnemonicprefix",
            "noprefix",
            "relative",
            "renamelimit",
            "renames",
            "submodule",
            "wserrorhighlight",
        ],
    ),
    ("feature", &["experimental", "manyfiles"]),
    ("fetch", &["prune", "prunetags", "parallel", "writecommitgraph", "output", "showforcedupdates", "all"]),
    ("gc", &["auto", "autodetach", "autopacklimit", "cruftpacks", "packrefs", "writecommitgraph"]),
    ("http", &["postbuffer", "lowspeedlimit", "lowspeedtime", "version", "maxrequests"]),
    ("i18n", &["commitencoding", "logoutputencoding"]),
    ("index", &["sparse", "threads", "version", "skiphash", "recordendofindexentries"]),
    ("init", &["defaultbranch"]),
    ("log", &["abbrevcommit", "date", "decorate", "follow", "mailmap"]),
    ("maintenance", &["auto", "autodetach", "strategy"]),
    ("merge", &["autostash", "conflictstyle", "ff", "log", "renamelimit", "renames", "renormalize", "stat"]),
    ("pull", &["ff", "rebase"]),
    ("push", &["autosetupremote", "default", "followtags", "useforceifincludes"]),
    ("rebase", &["abbreviatecommands", "autosquash", "autostash", "forkpoint", "stat", "updaterefs"]),
    ("rerere", &["enabled"]),
    ("stash", &["showincludeuntracked", "showpatch", "showstat"]),
    (
        "status",
        &[
            "aheadbehind",
            "branch",
            "displaycommentprefix",
            "relativepaths",
            "renamelimit",
            "renames",
            "short",
            "showstash",
            "showuntrackedfiles",
            "submodulesummary",
        ],
    ),
    ("submodule", &["active", "fetchjobs", "propagatebranches", "recurse"]),
    ("tag", &["sort"]),
    ("user", &["name", "email", "signingkey", "useconfigonly"]),
    ("worktree", &["guessremote", "userelativepaths"]),
];

fn rule(name: &Name) -> Rule {
    let key = name.key.as_str();
    // git's own keys have no dash; tools that keep something beside a branch or a remote choose one
    // (vscode-merge-base, gh-resolved) so that it never becomes git's.
    let foreign = key.contains('-');
    let Some(sub) = &name.subsection else { return plain_rule(&name.section, key) };
    match (name.section.as_str(), key) {
        ("branch", "merge" | "rebase" | "description") => Rule::Free,
        ("branch", "remote" | "pushremote") => Rule::Remote,
        ("remote", "url" | "pushurl") | ("submodule", "url") => Rule::Url,
        ("remote", "fetch") => Rule::Fetch,
        ("remote", "tagopt") => Rule::OneOf(&["--tags", "--no-tags"]),
        ("remote", "prune" | "prunetags" | "skipdefaultupdate" | "skipfetchall" | "promisor") => Rule::Bool,
        ("remote", "partialclonefilter" | "followremotehead") => Rule::Free,
        ("branch" | "remote", _) if foreign => Rule::Free,
        ("submodule", "active" | "branch" | "fetchrecursesubmodules" | "ignore" | "shallow") => Rule::Free,
        ("submodule", "update") => Rule::OneOf(&["checkout", "rebase", "merge", "none"]),
        ("maintenance", "enabled" | "schedule" | "auto") => Rule::Free,
        ("color", _) => Rule::Free,
        ("lfs", "access" | "locksverify") => Rule::Free,
        // What `git lfs install --local` writes; it is not in the turn's hands what `git-lfs` is.
        ("filter", _) if sub == b"lfs" => match key {
            "clean" => Rule::Exactly("git-lfs clean -- %f"),
            "smudge" => Rule::Exactly("git-lfs smudge -- %f"),
            "process" => Rule::Exactly("git-lfs filter-process"),
            "required" => Rule::Bool,
            _ => Rule::Guarded,
        },
        _ => Rule::Guarded,
    }
}

fn plain_rule(section: &str, key: &str) -> Rule {
    match (section, key) {
        ("core", "bare") => Rule::Exactly("false"),
        ("core", "repositoryformatversion") => Rule::OneOf(&["0", "1"]),
        ("core", "worktree") => Rule::Top,
        ("core", key) if CORE_BOOLS.contains(&key) => Rule::Bool,
        ("core", key) if CORE_FREE.contains(&key) => Rule::Free,
        ("extensions", "worktreeconfig" | "relativeworktrees" | "preciousobjects") => Rule::Bool,
        // Written once, when a repository is made; where one is there already it is guarded below.
        ("extensions", "objectformat") => Rule::OneOf(&["sha1", "sha256"]),
        ("extensions", "partialclone") => Rule::Remote,
        ("extensions", "refstorage") => Rule::Storage,
        ("remote", "pushdefault") | ("checkout", "defaultremote") => Rule::Remote,
        ("commit" | "tag", "gpgsign") => Rule::Bool,
        ("gpg", "format") => Rule::OneOf(&["openpgp", "x509", "ssh"]),
        ("protocol", "version") => Rule::OneOf(&["0", "1", "2"]),
        ("lfs", "repositoryformatversion") => Rule::Free,
        ("advice" | "color" | "column", _) => Rule::Free,
        _ if FREE.iter().any(|(name, keys)| *name == section && keys.contains(&key)) => Rule::Free,
        _ => Rule::Guarded,
    }
}

fn accepts(
    rule: Rule,
    name: &Name,
    value: Option<&[u8]>,
    remotes: &BTreeSet<Vec<u8>>,
    context: &Context<'_>,
) -> bool {
    let Some(value) = value else { return matches!(rule, Rule::Free | Rule::Bool) };
    match rule {
        Rule::Guarded => false,
        Rule::Free => true,
        Rule::Bool => {
            let words: &[&[u8]] = &[b"true", b"false", b"yes", b"no", b"on", b"off", b"1", b"0", b""];
            words.iter().any(|word| value.eq_ignore_ascii_case(word))
        }
        Rule::OneOf(words) => words.iter().any(|word| value.eq_ignore_ascii_case(word.as_bytes())),
        Rule::Exactly(word) => value == word.as_bytes(),
        // git takes the name of an unknown remote as a path, and a push into a directory runs its hooks.
        Rule::Remote => value == b"." && name.section == "branch" || remotes.contains(value),
        Rule::Url => context.takes(value),
        Rule::Fetch => harmless_refspec(value),
        Rule::Top => {
            let top = entry::normal(&context.git_dir.join(OsStr::from_bytes(value)));
            context.tops.iter().any(|above| top != *above && top.starts_with(above))
                && !top.starts_with(context.git_dir)
        }
        Rule::Storage => match value {
            b"files" => !context.reftable,
            b"reftable" => context.reftable,
            _ => false,
        },
    }
}

/// Whether git can be given this URL without running anything but its own transports, and without running
/// hooks that a turn wrote (git-fetch(1), "GIT URLS"; git-remote-ext(1); CVE-2017-1000117).
fn harmless_url(url: &[u8], writable: &[PathBuf]) -> bool {
    let Ok(url) = std::str::from_utf8(url) else { return false };
    if url.is_empty() || url.chars().any(char::is_control) || url.starts_with('-') {
        return false;
    }
    let scheme_end = url.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    let rest = scheme_end.map_or("", |end| &url[end..]);
    if rest.starts_with("::") {
        return false;
    }
    if let Some(after) = rest.strip_prefix("://") {
        let scheme = url[..url.len() - rest.len()].to_ascii_lowercase();
        let host = after.rsplit_once('@').map_or(after, |(_, host)| host);
        return match scheme.as_str() {
            "http" | "https" | "ssh" | "git" | "ssh+git" | "git+ssh" | "ftp" | "ftps" => {
                !after.is_empty() && !after.starts_with('-') && !host.starts_with('-')
            }
            "file" => harmless_path(Path::new(after), writable),
            // Anything else is the name of a program git-remote-<scheme>.
            _ => false,
        };
    }
    // host:path, unless a slash comes first.
    let colon = url.find(':');
    let slash = url.find('/');
    if let Some(colon) = colon
        && slash.is_none_or(|slash| colon < slash)
    {
        let (host, path) = (&url[..colon], &url[colon + 1..]);
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        return !host.is_empty() && !host.starts_with('-') && !path.starts_with('-');
    }
    harmless_path(Path::new(url), writable)
}

fn harmless_path(path: &Path, writable: &[PathBuf]) -> bool {
    if !path.is_absolute() {
        // Relative to whatever directory git happens to run in.
        return false;
    }
    let real = entry::real(path);
    !writable.iter().any(|place| real.starts_with(place) || place.starts_with(&real))
}

/// Whether a fetch by this refspec leaves branches and git's own refs alone.
fn harmless_refspec(spec: &[u8]) -> bool {
    let Ok(spec) = std::str::from_utf8(spec) else { return false };
    if spec.starts_with('^') {
        return true;
    }
    let Some((_, destination)) = spec.trim_start_matches('+').split_once(':') else { return true };
    let Some(rest) = destination.strip_prefix("refs/") else { return destination.is_empty() };
    let Some((namespace, _)) = rest.split_once('/') else { return false };
    const OWN: [&str; 9] =
        ["heads", "replace", "stash", "bisect", "worktree", "rewritten", "original", "codeoid", "notes"];
    !namespace.contains('*') && !OWN.contains(&namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "[core]\n\tbare = false\n\tpager = less\n[remote \"origin\"]\n\turl = https://h/r\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n";

    fn context<'a>(git_dir: &'a str, writable: &'a [PathBuf], tops: &'a [PathBuf]) -> Context<'a> {
        Context { writable, urls: &[], git_dir: Path::new(git_dir), tops, reftable: false }
    }

    fn judged(before: &str, now: &str) -> Verdict {
        let writable = [PathBuf::from("/ws")];
        let context = context("/r/.git", &writable, &[]);
        let pair = |text| Pair { shared: Some(str::as_bytes(text)), own: None };
        judge_pair(pair(before), pair(now), &context).0
    }

    fn added(text: &str) -> Verdict {
        judged(BASE, &format!("{BASE}{text}"))
    }

    #[test]
    fn what_people_and_tools_write_passes() {
        for text in [
            "[user]\n\tname = A\n\temail = a@b\n",
            "[branch \"x\"]\n\tremote = origin\n\tmerge = refs/heads/x\n\tvscode-merge-base = origin/main\n",
            "[branch \"x\"]\n\tremote = .\n\tdescription = text\n",
            "[remote \"up\"]\n\turl = git@github.com:a/b.git\n\tfetch = +refs/heads/*:refs/remotes/up/*\n\tgh-resolved = base\n",
            "[remote \"up\"]\n\turl = ssh://git@host:22/x\n[branch \"x\"]\n\tpushRemote = up\n",
            "[remote \"disk\"]\n\turl = /srv/backup.git\n",
            "[remote \"disk\"]\n\turl = file:///srv/backup.git\n",
            "[submodule \"s\"]\n\turl = https://h/s\n\tactive = true\n\tupdate = rebase\n",
            "[maintenance]\n\tauto = false\n\tstrategy = incremental\n[gc]\n\tauto = 0\n",
            "[extensions]\n\tworktreeConfig = true\n[core]\n\trepositoryformatversion = 1\n",
            "[core]\n\tfsmonitor = true\n\tsparseCheckout\n",
            "[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\trequired = true\n",
            "[color \"diff\"]\n\tmeta = yellow\n[advice]\n\tdetachedHead = false\n",
        ] {
            assert_eq!(added(text), Verdict::default(), "{text}");
        }
        assert_eq!(judged(BASE, &BASE.replace("\turl = https://h/r\n", "")), Verdict::default());
    }

    #[test]
    fn what_runs_something_is_undone() {
        for text in [
            "[core]\n\tfsmonitor = /tmp/x\n",
            "[core]\n\tfsmonitor = \"touch x\"\n",
            "[core]\n\thooksPath = x\n",
            "[core]\n\tsshCommand = x\n",
            "[core]\n\tworktree = /x\n",
            "[core]\n\tbare = true\n",
            "[alias]\n\tst = !x\n",
            "[include]\n\tpath = x\n",
            "[includeIf \"gitdir:/\"]\n\tpath = x\n",
            "[filter \"lfs\"]\n\tclean = x\n",
            "[filter \"x\"]\n\tclean = x\n",
            "[diff \"x\"]\n\ttextconv = x\n",
            "[diff]\n\texternal = x\n",
            "[merge \"x\"]\n\tdriver = x\n",
            "[branch \"x\"]\n\tmergeOptions = --strategy=x\n",
            "[branch \"x\"]\n\tremote = ./planted\n",
            "[branch \"x\"]\n\tremote = planted\n",
            "[branch \"x\"]\n\tremote = ext::x\n",
            "[remote \"r\"]\n\turl = ext::sh -c x\n",
            "[remote \"r\"]\n\turl = foo://x\n",
            "[remote \"r\"]\n\turl = /ws/planted\n",
            "[remote \"r\"]\n\turl = file:///ws/planted\n",
            "[remote \"r\"]\n\turl = ../planted\n",
            "[remote \"r\"]\n\turl = /\n",
            "[remote \"r\"]\n\turl = ssh://-oProxyCommand=x/y\n",
            "[remote \"r\"]\n\turl = -x:y\n",
            "[remote \"r\"]\n\turl = u@-oProxyCommand=x:y\n",
            "[remote \"r\"]\n\turl = ext::x\n[branch \"x\"]\n\tremote = r\n",
            "[remote \"origin\"]\n\tuploadpack = x\n",
            "[remote \"origin\"]\n\tvcs = x\n",
            "[remote \"origin\"]\n\tfetch = +refs/heads/*:refs/heads/*\n",
            "[remote \"origin\"]\n\tfetch = +refs/*:refs/*\n",
            "[remote \"origin\"]\n\tfetch = refs/heads/x:HEAD\n",
            "[url \"ext::x\"]\n\tinsteadOf = https:\n",
            "[protocol \"ext\"]\n\tallow = always\n",
            "[submodule \"s\"]\n\tupdate = !x\n",
            "[hook \"x\"]\n\tcommand = x\n",
            "[rebase]\n\tinstructionFormat = %n exec x\n",
            "[credential]\n\thelper = x\n",
            "[gpg]\n\tprogram = x\n",
            "[extensions]\n\trefStorage = reftable\n",
            "[nobody]\n\tknows = this\n",
        ] {
            let verdict = added(text);
            assert!(!verdict.undone.is_empty(), "{text}");
            let bytes = verdict.bytes.unwrap();
            let mended = File::parse(&bytes).unwrap();
            let base = File::parse(BASE.as_bytes()).unwrap();
            let list = |file: &File| {
                file.variables().iter().map(|v| (v.name.clone(), v.value.clone())).collect::<Vec<_>>()
            };
            assert_eq!(list(&mended), list(&base), "{text}");
        }
    }

    #[test]
    fn the_humans_lines_survive_beside_what_is_undone() {
        let now = format!("{BASE}# note\n[user]\n\tname = Me ; here\n[core]\n\tfsmonitor = /tmp/x\n");
        let verdict = judged(BASE, &now);
        let text = String::from_utf8(verdict.bytes.unwrap()).unwrap();
        assert_eq!(text, format!("{BASE}# note\n[user]\n\tname = Me ; here\n"));
        assert_eq!(verdict.undone, ["core.fsmonitor was added (\"/tmp/x\")"]);
    }

    #[test]
    fn a_guarded_key_comes_back_with_its_value() {
        for now in [BASE.replace("less", "/tmp/x"), BASE.replace("\tpager = less\n", "")] {
            let verdict = judged(BASE, &now);
            let file = File::parse(&verdict.bytes.unwrap()).unwrap();
            assert_eq!(file.last("core", "pager"), Some(Some(&b"less"[..])), "{now}");
        }
    }

    #[test]
    fn a_bad_value_is_replaced_by_the_old_one() {
        let verdict = judged(BASE, &BASE.replace("https://h/r", "ext::x"));
        let file = File::parse(&verdict.bytes.unwrap()).unwrap();
        let urls: Vec<_> = file.variables().iter().filter(|v| v.name.key == "url").collect();
        assert_eq!(urls.len(), 1);
        assert_eq!(urls[0].value.as_deref(), Some(&b"https://h/r"[..]));
    }

    #[test]
    fn a_remote_that_moved_is_said() {
        let verdict = judged(BASE, &BASE.replace("https://h/r", "https://evil/r"));
        assert_eq!(verdict.bytes, None);
        assert_eq!(verdict.reported, ["remote.origin.url was changed to \"https://evil/r\""]);
    }

    #[test]
    fn a_file_that_git_refuses_goes_back() {
        let verdict = added("[core\n");
        assert_eq!(verdict.bytes.as_deref(), Some(BASE.as_bytes()));
    }

    #[test]
    fn git_may_move_core_bare_to_config_worktree() {
        let shared_before = "[core]\n\tbare = true\n";
        let shared_now = "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tworktreeConfig = true\n";
        let own_now = "[core]\n\tbare = true\n";
        let context = context("/r.git", &[], &[]);
        let before = Pair { shared: Some(shared_before.as_bytes()), own: None };
        let now = Pair { shared: Some(shared_now.as_bytes()), own: Some(own_now.as_bytes()) };
        let (shared, own) = judge_pair(before, now, &context);
        assert_eq!((shared, own), (Verdict::default(), Verdict::default()));
        // Without the move it is no setting that anybody changes.
        let now = Pair { shared: Some(shared_before.as_bytes()), own: Some(own_now.as_bytes()) };
        assert!(!judge_pair(before, now, &context).1.undone.is_empty());
    }

    #[test]
    fn a_new_submodules_checkout_lies_in_the_checkout() {
        let tops = [PathBuf::from("/r")];
        let context = context("/r/.git/modules/s", &[], &tops);
        for (value, fine) in [("../../../s", true), ("../../../..", false), ("/etc", false), (".", false)] {
            let text = format!("[core]\n\tworktree = {value}\n");
            let now = Pair { shared: Some(text.as_bytes()), own: None };
            let verdict = judge_pair(Pair::default(), now, &context).0;
            assert_eq!(verdict.undone.is_empty(), fine, "{value}");
        }
    }
}
