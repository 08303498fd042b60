//! git's configuration file format, as git itself reads it (git-config(1), "Syntax"; the quirks are those of
//! git's own reader: a carriage return before a newline is dropped, `[a.b]` is the older spelling of
//! `[a "b"]`, a key without `=` means true).
//!
//! A turn's changes are judged key by key, so this reader must see exactly what git sees. What git would call
//! a bad line is an error here too, and so is a NUL byte, which git's C strings and this reader would take
//! differently. Includes are never followed.

use std::fmt;

/// Why a file is not a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A line that git would refuse, too.
    #[error("bad config line {line}")]
    Line {
        /// The line, from 1.
        line: usize,
    },
}

/// A key's full name: section and key are lower case, the subsection is as written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// `branch` of `branch.main.remote`.
    pub section: String,
    /// `main` of `branch.main.remote`; any bytes but a newline.
    pub subsection: Option<Vec<u8>>,
    /// `remote` of `branch.main.remote`.
    pub key: String,
}

impl Name {
    /// Splits what git calls a variable's name at its first and its last dot.
    fn split(full: &[u8]) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let first = full.iter().position(|b| *b == b'.');
        let last = full.iter().rposition(|b| *b == b'.');
        match (first, last) {
            (Some(first), Some(last)) if first < last => Self {
                section: text(&full[..first]),
                subsection: Some(full[first + 1..last].to_vec()),
                key: text(&full[last + 1..]),
            },
            (Some(dot), _) => {
                Self { section: text(&full[..dot]), subsection: None, key: text(&full[dot + 1..]) }
            }
            _ => Self { section: String::new(), subsection: None, key: text(full) },
        }
    }

    /// Whether this is `section.key`, without a subsection.
    #[must_use]
    pub fn is(&self, section: &str, key: &str) -> bool {
        self.section == section && self.subsection.is_none() && self.key == key
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subsection {
            Some(sub) => {
                let sub = String::from_utf8_lossy(sub);
                write!(f, "{}.{}.{}", self.section, sub.escape_debug(), self.key)
            }
            None => write!(f, "{}.{}", self.section, self.key),
        }
    }
}

/// One assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// What is set.
    pub name: Name,
    /// To what; `None` where there is no `=`.
    pub value: Option<Vec<u8>>,
    /// The bytes of the file that make it up: from the key's first to the newline that ends it, inclusive.
    span: (usize, usize),
    /// Where the header above it starts.
    section: usize,
}

/// A configuration file that was read whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct File {
    variables: Vec<Variable>,
    /// The bytes of each section: from its header's first to the next one's.
    sections: Vec<(usize, usize)>,
}

impl File {
    /// Reads a file's bytes.
    ///
    /// # Errors
    /// [`Error::Line`] for what git would refuse.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Reader { bytes, at: 0, line: 1, ended: false }.file()
    }

    /// All assignments, in order.
    #[must_use]
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// All values of one key, in order.
    #[must_use]
    pub fn values<'a>(&'a self, name: &'a Name) -> Vec<&'a Variable> {
        self.variables.iter().filter(|v| v.name == *name).collect()
    }

    /// The value of `section.key` that counts: the last one. `Some(None)` where it stands without `=`.
    #[must_use]
    pub fn last(&self, section: &str, key: &str) -> Option<Option<&[u8]>> {
        self.variables.iter().rev().find(|v| v.name.is(section, key)).map(|v| v.value.as_deref())
    }

    /// Whether `section.key` is set to something true, as git reads a boolean.
    #[must_use]
    pub fn is_true(&self, section: &str, key: &str) -> bool {
        self.last(section, key).is_some_and(truth)
    }
}

/// Whether a value is true, as git reads a boolean (git-config(1), "Values").
#[must_use]
pub fn truth(value: Option<&[u8]>) -> bool {
    let Some(value) = value else { return true };
    let text = String::from_utf8_lossy(value).to_ascii_lowercase();
    match text.as_str() {
        "true" | "yes" | "on" => true,
        "" | "false" | "no" | "off" => false,
        number => number.trim_end_matches(['k', 'm', 'g']).parse::<i64>().is_ok_and(|n| n != 0),
    }
}

/// The file without the assignments at these positions of [`File::variables`]. Everything else stays as it
/// is, byte for byte; a line that only held a removed assignment goes too, and so does a header that has nothing
/// below it any more.
#[must_use]
pub fn without(bytes: &[u8], file: &File, remove: &[usize]) -> Vec<u8> {
    let mut spans: Vec<_> =
        remove.iter().filter_map(|index| file.variables.get(*index)).map(|v| v.span).collect();
    spans.extend(emptied(bytes, file, remove));
    spans.sort_unstable();
    let mut result = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for (start, end) in spans {
        let line = bytes[..start].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let alone = bytes[line..start].iter().all(|b| b" \t".contains(b));
        let (start, end) = if alone {
            (line, end)
        } else {
            // Something else stands before it on its line (a section header): the newline has to stay.
            (start, if bytes[..end].ends_with(b"\n") { end - 1 } else { end })
        };
        if start >= from {
            result.extend_from_slice(&bytes[from..start]);
        }
        from = end.max(from);
    }
    result.extend_from_slice(&bytes[from..]);
    result
}

/// The sections that hold nothing but assignments that are removed.
fn emptied(bytes: &[u8], file: &File, remove: &[usize]) -> Vec<(usize, usize)> {
    let is_empty = |(start, end): &(usize, usize)| {
        let mut inside = file.variables.iter().enumerate().filter(|(_, v)| v.section == *start).peekable();
        let mut at = start + bytes[*start..*end].iter().position(|b| *b == b']').map_or(0, |at| at + 1);
        inside.peek().is_some()
            && inside.all(|(index, variable)| {
                let (from, to) = variable.span;
                let blank = bytes[at.min(from)..from].trim_ascii().is_empty();
                at = to;
                blank && remove.contains(&index)
            })
            && bytes[at..*end].trim_ascii().is_empty()
    };
    file.sections.iter().copied().filter(is_empty).collect()
}

/// The file with these assignments added at its end.
#[must_use]
pub fn with(mut bytes: Vec<u8>, add: &[Variable]) -> Vec<u8> {
    if !add.is_empty() && !bytes.is_empty() && !bytes.ends_with(b"\n") {
        bytes.push(b'\n');
    }
    let mut section = None;
    for Variable { name, value, .. } in add {
        let header = (&name.section, &name.subsection);
        if section != Some(header) {
            bytes.push(b'[');
            bytes.extend_from_slice(name.section.as_bytes());
            if let Some(sub) = &name.subsection {
                bytes.extend_from_slice(b" \"");
                for byte in sub {
                    if b"\"\\".contains(byte) {
                        bytes.push(b'\\');
                    }
                    bytes.push(*byte);
                }
                bytes.push(b'"');
            }
            bytes.extend_from_slice(b"]\n");
            section = Some(header);
        }
        bytes.push(b'\t');
        bytes.extend_from_slice(name.key.as_bytes());
        if let Some(value) = value {
            bytes.extend_from_slice(b" = \"");
            for byte in value {
                match byte {
                    b'"' | b'\\' => bytes.extend_from_slice(&[b'\\', *byte]),
                    b'\n' => bytes.extend_from_slice(b"\\n"),
                    b'\t' => bytes.extend_from_slice(b"\\t"),
                    8 => bytes.extend_from_slice(b"\\b"),
                    _ => bytes.push(*byte),
                }
            }
            bytes.push(b'"');
        }
        bytes.push(b'\n');
    }
    bytes
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    line: usize,
    ended: bool,
}

const fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

impl Reader<'_> {
    /// The next character as git takes it; the file's end reads as a newline.
    fn next(&mut self) -> u8 {
        let mut byte = match self.bytes.get(self.at) {
            Some(byte) => *byte,
            None => {
                self.ended = true;
                return b'\n';
            }
        };
        self.at += 1;
        if byte == b'\r' && self.bytes.get(self.at) == Some(&b'\n') {
            self.at += 1;
            byte = b'\n';
        }
        if byte == b'\n' {
            self.line += 1;
        }
        byte
    }

    const fn bad<T>(&self) -> Result<T, Error> {
        Err(Error::Line { line: self.line })
    }

    fn file(mut self) -> Result<File, Error> {
        if let Some(nul) = self.bytes.iter().position(|b| *b == 0) {
            let line = 1 + self.bytes[..nul].iter().filter(|b| **b == b'\n').count();
            return Err(Error::Line { line });
        }
        if self.bytes.starts_with(b"\xef\xbb\xbf") {
            self.at = 3;
        }
        let mut file = File::default();
        let mut section: Vec<u8> = Vec::new();
        let mut header = 0;
        let mut comment = false;
        loop {
            let start = self.at;
            let byte = self.next();
            if byte == b'\n' {
                if self.ended {
                    if let Some(last) = file.sections.last_mut() {
                        last.1 = self.bytes.len();
                    }
                    return Ok(file);
                }
                comment = false;
            } else if comment || is_space(byte) {
            } else if byte == b'#' || byte == b';' {
                comment = true;
            } else if byte == b'[' {
                if let Some(last) = file.sections.last_mut() {
                    last.1 = start;
                }
                file.sections.push((start, start));
                header = start;
                section = self.section()?;
                section.push(b'.');
            } else if byte.is_ascii_alphabetic() {
                let mut full = section.clone();
                full.push(byte.to_ascii_lowercase());
                let value = self.assignment(&mut full)?;
                let span = (start, self.at);
                file.variables.push(Variable { name: Name::split(&full), value, span, section: header });
            } else {
                return self.bad();
            }
        }
    }

    fn section(&mut self) -> Result<Vec<u8>, Error> {
        let mut name = Vec::new();
        loop {
            let byte = self.next();
            if self.ended {
                return self.bad();
            }
            match byte {
                b']' => return Ok(name),
                _ if is_space(byte) => return self.subsection(name, byte),
                _ if is_key(byte) || byte == b'.' => name.push(byte.to_ascii_lowercase()),
                _ => return self.bad(),
            }
        }
    }

    fn subsection(&mut self, mut name: Vec<u8>, mut byte: u8) -> Result<Vec<u8>, Error> {
        while is_space(byte) {
            if byte == b'\n' {
                return self.bad();
            }
            byte = self.next();
        }
        if byte != b'"' {
            return self.bad();
        }
        name.push(b'.');
        loop {
            match self.next() {
                b'\n' => return self.bad(),
                b'"' => break,
                b'\\' => match self.next() {
                    b'\n' => return self.bad(),
                    byte => name.push(byte),
                },
                byte => name.push(byte),
            }
        }
        if self.next() == b']' { Ok(name) } else { self.bad() }
    }

    fn assignment(&mut self, full: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Error> {
        let mut byte = self.next();
        while !self.ended && is_key(byte) {
            full.push(byte.to_ascii_lowercase());
            byte = self.next();
        }
        while byte == b' ' || byte == b'\t' {
            byte = self.next();
        }
        match byte {
            b'\n' => Ok(None),
            b'=' => self.value().map(Some),
            _ => self.bad(),
        }
    }

    fn value(&mut self) -> Result<Vec<u8>, Error> {
        let mut value = Vec::new();
        // Where trailing white space began, if it did.
        let mut trim: Option<usize> = None;
        let (mut quoted, mut comment) = (false, false);
        loop {
            let byte = self.next();
            if byte == b'\n' {
                if quoted {
                    return self.bad();
                }
                value.truncate(trim.unwrap_or(value.len()));
                return Ok(value);
            }
            if comment {
                continue;
            }
            if is_space(byte) && !quoted {
                trim = trim.or(Some(value.len()));
                if !value.is_empty() {
                    value.push(byte);
                }
                continue;
            }
            if !quoted && (byte == b';' || byte == b'#') {
                comment = true;
                continue;
            }
            trim = None;
            match byte {
                b'\\' => match self.next() {
                    b'\n' => {}
                    b't' => value.push(b'\t'),
                    b'b' => value.push(8),
                    b'n' => value.push(b'\n'),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return self.bad(),
                },
                b'"' => quoted = !quoted,
                _ => value.push(byte),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn shown(file: &File) -> Vec<(String, Option<String>)> {
        file.variables
            .iter()
            .map(|v| {
                let value = v.value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
                (v.name.to_string(), value)
            })
            .collect()
    }

    /// What git itself reads in a file: `None` where it refuses it.
    fn git_list(text: &[u8]) -> Option<Vec<(String, Option<String>)>> {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("config");
        std::fs::write(&file, text).unwrap();
        let output = Command::new("git")
            .args(["config", "--no-includes", "-z", "--list", "--file"])
            .arg(&file)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("HOME", temp.path())
            .output()
            .unwrap();
        if !output.status.success() {
            return None;
        }
        let list = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(
            list.split_terminator('\0')
                .map(|item| match item.split_once('\n') {
                    Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                    None => (item.to_owned(), None),
                })
                .collect(),
        )
    }

    const TEXTS: &[&str] = &[
        "[core]\n\tbare = false\n",
        "[Core]\r\n\tBare = False\r\n",
        "\u{feff}[core]\n\tbare\n",
        "[branch \"a.b\\\"c\\\\d\"]\n\tremote = origin ; comment\n",
        "[branch.Main]\n\tmerge = refs/heads/main\n",
        "[a] b = c\n[d]e=f",
        "[a]\n\tb = \"x ; y\"  # z\n",
        "[a]\n\tb = one \\\n  two\n",
        "[a]\n\tb = x\\ty\\nz\\\\\\\"\n",
        "[a]\n\tb =   \n\tc = \"\"\n\td\n",
        "[a]\n\tb = x   y\n",
        "[a]\n\tb = \"unfinished\n",
        "[a]\n\tb = bad\\q\n",
        "[a\n\tb = c\n",
        "[a \"b\"c]\n\td = e\n",
        "[a]\n\t1b = c\n",
        "[a]\n\tb # = c\n",
        "[a_b]\n\tc = d\n",
        "[a]\n\tb_c = d\n",
        "; only a comment",
        "",
        "[a \"\"]\n\tb = c\n",
        "[a   \"x\"]\n\tb = c\n",
        "[a]\n\tb = c\\",
        "[a]\n\tb = # comment \\\n\tc = d\n",
        "[core]\n\tfsmonitor = \"\\\"/tmp/x\\\" y\"\n",
    ];

    #[test]
    fn it_reads_what_git_reads() {
        for text in TEXTS {
            let ours = File::parse(text.as_bytes()).ok().map(|file| shown(&file));
            let escaped = git_list(text.as_bytes()).map(|list| {
                list.into_iter()
                    .map(|(name, value)| match (name.find('.'), name.rfind('.')) {
                        // Name's Display escapes the subsection, for messages.
                        (Some(first), Some(last)) if first < last => {
                            let sub = name[first + 1..last].escape_debug();
                            (format!("{}.{sub}.{}", &name[..first], &name[last + 1..]), value)
                        }
                        _ => (name, value),
                    })
                    .collect::<Vec<_>>()
            });
            assert_eq!(ours, escaped, "{text:?}");
        }
    }

    #[test]
    fn a_nul_byte_is_refused() {
        assert_eq!(File::parse(b"[a]\n\tb = c\0d\n"), Err(Error::Line { line: 2 }));
    }

    #[test]
    fn removing_leaves_the_rest_as_it_is() {
        let text = b"# mine\n[core]\n\tbare = false\n\tfsmonitor = /tmp/x\n[a] b = c\n; end\n";
        let file = File::parse(text).unwrap();
        let bad: Vec<_> = (0..file.variables.len())
            .filter(|i| ["fsmonitor", "b"].contains(&file.variables[*i].name.key.as_str()))
            .collect();
        let rest = without(text, &file, &bad);
        assert_eq!(String::from_utf8_lossy(&rest), "# mine\n[core]\n\tbare = false\n[a] \n; end\n");
    }

    #[test]
    fn a_header_without_anything_below_it_goes() {
        for (text, expected) in [
            ("[a]\n\tb = c\n[d]\n\te = f\n", ""),
            ("[x]\n[a]\n\tb = c\n", "[x]\n"),
            ("[a]\n\tb = c\n\n# note\n", "[a]\n\n# note\n"),
            ("[a \"]\"]\n\tb = c\n", "[a \"]\"]\n"),
            ("[a] b = c\n", ""),
        ] {
            let file = File::parse(text.as_bytes()).unwrap();
            let all: Vec<_> = (0..file.variables.len()).collect();
            assert_eq!(String::from_utf8_lossy(&without(text.as_bytes(), &file, &all)), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_added_reads_back() {
        let text = b"[a \"x\\\"\\\\y\"]\n\tb = \"q\\\"\\\\ \\n\\t#;\"\n\tc\n[d]\n\te =\n";
        let file = File::parse(text).unwrap();
        let again = File::parse(&with(b"[z]\n\ty = 1".to_vec(), file.variables())).unwrap();
        assert_eq!(shown(&again)[1..], shown(&file)[..]);
    }

    #[test]
    fn random_bytes_never_panic() {
        const ALPHABET: &[u8] = b"[]\"\\=#; \t\r\nab.-\0\xff";
        let mut seed = 1u32;
        for _ in 0..2_000 {
            let text: Vec<u8> = (0..40)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    ALPHABET[(seed >> 16) as usize % ALPHABET.len()]
                })
                .collect();
            if let Ok(file) = File::parse(&text) {
                let all: Vec<_> = (0..file.variables.len()).collect();
                let rest = without(&text, &file, &all);
                assert!(File::parse(&rest).is_ok_and(|f| f.variables.is_empty()), "{text:?} -> {rest:?}");
            }
        }
    }

    #[test]
    fn truth_is_gits() {
        for (value, expected) in
            [(None, true), (Some("Yes"), true), (Some(""), false), (Some("2"), true), (Some("0"), false)]
        {
            assert_eq!(truth(value.map(str::as_bytes)), expected, "{value:?}");
        }
    }
}
