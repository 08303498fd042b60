//! The configuration file's text: JSON, of which the object `sandbox` is ours. Each value is taken as a slice
//! of the text (`RawValue`), so that its position is known when it is refused and when a rule is explained.
//! That type also skips what is not ours without recursion, so that deep nesting costs no stack.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::{Error, Place};
use super::key::{Key, Kind, SECTION, nearest};
use super::layer::Layer;
use super::value;
use crate::origin::{Origin, Sourced};

impl Layer {
    /// The part of a configuration file with this text. Top-level keys other than `sandbox` belong to other
    /// programs; below it everything is checked.
    ///
    /// # Errors
    /// Not JSON, an unknown or repeated key, a value of the wrong type or one that the option does not take,
    /// a relative path: each with line and column.
    pub fn from_file(path: &Path, text: &str) -> Result<Self, Error> {
        let file = File::new(path, text);
        let mut layer = Self {
            config: Some(Sourced::new(path.to_owned(), Origin::file(path, 1, SECTION))),
            ..Self::default()
        };
        let mut section: Option<Member<'_>> = None;
        for member in
            file.members(file.whole()?, "the file", &format!("an object, {{\"{SECTION}\": {{…}}}}"))?
        {
            if member.name == SECTION {
                if let Some(first) = &section {
                    return Err(file.duplicate(&member, SECTION.to_owned(), first.at));
                }
                section = Some(member);
            } else if member.name.starts_with("sandbox.") || nearest(&member.name, [SECTION]).is_some() {
                // Whoever wrote this meant our section, and would have a sandbox without its rules.
                return Err(Error::UnknownKey {
                    place: file.place(member.at, printable(&member.name)),
                    allowed: vec![SECTION],
                    nearest: Some(SECTION.to_owned()),
                });
            }
        }
        if let Some(section) = section {
            file.group(&mut layer, "", section.value)?;
        }
        Ok(layer)
    }
}

/// One member of an object: its decoded name, where that stands, and its value.
struct Member<'t> {
    name: String,
    at: usize,
    value: &'t RawValue,
}

/// The members of an object in the order of the text, repeated ones included.
struct Members<'t>(Vec<(&'t RawValue, &'t RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A text and the beginnings of its lines.
struct File<'t> {
    path: &'t Path,
    text: &'t str,
    lines: Vec<usize>,
}

impl<'t> File<'t> {
    fn new(path: &'t Path, text: &'t str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { path, text, lines: std::iter::once(0).chain(ends).collect() }
    }

    /// The whole text as one value.
    fn whole(&self) -> Result<&'t RawValue, Error> {
        if self.text.starts_with('\u{feff}') {
            return Err(Error::ByteOrderMark { file: self.path.to_owned() });
        }
        if self.text.trim_ascii().is_empty() {
            return Err(Error::FileEmpty { file: self.path.to_owned() });
        }
        serde_json::from_str(self.text).map_err(|error| self.syntax(0, &error))
    }

    /// A group of keys: the object at `prefix` below our section.
    fn group(&self, layer: &mut Layer, prefix: &str, value: &'t RawValue) -> Result<(), Error> {
        let children = children(prefix);
        let allowed = format!("an object with {}", children.join(", "));
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for member in self.members(value, &full(prefix), &allowed)? {
            let path = join(prefix, &member.name);
            let key = Key::ALL.iter().find(|key| key.path() == Some(path.as_str()));
            if !children.contains(&member.name.as_str()) {
                return Err(Error::UnknownKey {
                    place: self.place(member.at, full(&join(prefix, &printable(&member.name)))),
                    nearest: suggestion(prefix, &member.name, &children),
                    allowed: children,
                });
            }
            if let Some(first) = seen.insert(member.name.clone(), member.at) {
                return Err(self.duplicate(&member, full(&path), first));
            }
            match key {
                Some(key) => self.leaf(layer, *key, &full(&path), member.value)?,
                None => self.group(layer, &path, member.value)?,
            }
        }
        Ok(())
    }

    /// The value of one key.
    fn leaf(&self, layer: &mut Layer, key: Key, name: &str, value: &'t RawValue) -> Result<(), Error> {
        match key.kind() {
            Kind::Paths | Kind::Texts => {
                for (index, item) in self.items(value, name, key)?.into_iter().enumerate() {
                    let name = format!("{name}[{index}]");
                    let text = self.scalar(item, &name, key)?;
                    self.set(layer, key, &name, item, &text)?;
                }
            }
            Kind::Assignments | Kind::Fallbacks => {
                let mut seen: BTreeMap<String, usize> = BTreeMap::new();
                for member in self.members(value, name, &allowed(key))? {
                    let name = format!("{name}.{}", printable(&member.name));
                    let text = self.scalar(member.value, &name, key)?;
                    let origin = self.origin(member.value, &name);
                    let result = if key == Key::Fallback {
                        fallback(&member.name, &text).map(|(rule, fallback)| {
                            layer.fallback.insert(rule, Sourced::new(fallback, origin));
                        })
                    } else {
                        value::assignment_of(&member.name, &text)
                            .map(|pair| layer.env_set.values.push(Sourced::new(pair, origin)))
                    };
                    result.map_err(|fault| self.fault(member.value, name.clone(), fault))?;
                    if let Some(first) = seen.insert(member.name.clone(), member.at) {
                        return Err(self.duplicate(&member, name, first));
                    }
                }
            }
            _ => {
                let text = self.scalar(value, name, key)?;
                self.set(layer, key, name, value, &text)?;
            }
        }
        Ok(())
    }

    /// Hands one value to the layer. What on the command line needs a current directory, or takes back what
    /// lower sources say, has no meaning here.
    fn set(&self, layer: &mut Layer, key: Key, name: &str, raw: &RawValue, text: &str) -> Result<(), Error> {
        let checked = match key.kind() {
            Kind::Path | Kind::Paths => value::absolute_path(text).map(drop),
            // "yes" and "1" are for the command line; JSON has true.
            Kind::WordsOrSwitch(allowed) if Json::of(raw) == Json::String && !allowed.contains(&text) => {
                Err(value::Error::Word { given: value::shown(text), allowed })
            }
            Kind::Texts if text.is_empty() => Err(value::Error::Empty { allowed: "text" }),
            _ => Ok(()),
        };
        checked
            .and_then(|()| layer.set(key, text, &self.origin(raw, name)))
            .map_err(|fault| self.fault(raw, name.to_owned(), fault))
    }

    /// The members of an object.
    fn members(&self, value: &'t RawValue, name: &str, allowed: &str) -> Result<Vec<Member<'t>>, Error> {
        if Json::of(value) != Json::Object {
            return Err(self.mismatch(value, name, allowed.to_owned()));
        }
        let Members(members) =
            serde_json::from_str(value.get()).map_err(|error| self.syntax(self.offset(value), &error))?;
        let member = |(name, value): (&'t RawValue, &'t RawValue)| {
            Ok(Member { name: self.string(name)?, at: self.offset(name), value })
        };
        members.into_iter().map(member).collect()
    }

    /// The items of an array.
    fn items(&self, value: &'t RawValue, name: &str, key: Key) -> Result<Vec<&'t RawValue>, Error> {
        if Json::of(value) != Json::Array {
            return Err(self.mismatch(value, name, allowed(key)));
        }
        serde_json::from_str(value.get()).map_err(|error| self.syntax(self.offset(value), &error))
    }

    /// The text of a value that is not composed.
    fn scalar(&self, value: &RawValue, name: &str, key: Key) -> Result<String, Error> {
        match (Json::of(value), key.kind()) {
            (Json::Number, Kind::Size | Kind::Count | Kind::Number)
            | (Json::Boolean, Kind::Switch | Kind::WordsOrSwitch(_)) => Ok(value.get().to_owned()),
            (Json::String, kind) if !matches!(kind, Kind::Count | Kind::Number | Kind::Switch) => {
                self.string(value)
            }
            (_, Kind::Paths | Kind::Texts | Kind::Assignments | Kind::Fallbacks) => {
                Err(self.mismatch(value, name, "a string".to_owned()))
            }
            _ => Err(self.mismatch(value, name, allowed(key))),
        }
    }

    /// A string, decoded. A lone surrogate (`"\ud800"`) is found only here.
    fn string(&self, value: &RawValue) -> Result<String, Error> {
        serde_json::from_str(value.get()).map_err(|error| self.syntax(self.offset(value), &error))
    }

    /// Where a value begins. Every one is a slice of the text.
    fn offset(&self, value: &RawValue) -> usize {
        value.get().as_ptr().addr().saturating_sub(self.text.as_ptr().addr()).min(self.text.len())
    }

    /// The line that this offset is in, from 1.
    fn line(&self, offset: usize) -> u32 {
        u32::try_from(self.lines.partition_point(|start| *start <= offset)).unwrap_or(u32::MAX)
    }

    /// Line and column of an offset, both from 1; a column is a character.
    fn position(&self, offset: usize) -> (u32, u32) {
        let line = self.line(offset);
        let start = self.lines[line as usize - 1];
        let column =
            self.text.as_bytes()[start..offset].iter().filter(|byte| !is_continuation(**byte)).count();
        (line, u32::try_from(column + 1).unwrap_or(u32::MAX))
    }

    fn place(&self, offset: usize, key: String) -> Place {
        let (line, column) = self.position(offset);
        Place::Key { file: self.path.to_owned(), line, column, key }
    }

    fn origin(&self, value: &RawValue, name: &str) -> Origin {
        Origin::file(self.path, self.line(self.offset(value)), name)
    }

    fn fault(&self, value: &RawValue, name: String, fault: value::Error) -> Error {
        Error::Value { place: self.place(self.offset(value), name), fault }
    }

    fn mismatch(&self, value: &RawValue, name: &str, allowed: String) -> Error {
        let place = self.place(self.offset(value), name.to_owned());
        Error::Type { place, found: Json::of(value).name(), allowed }
    }

    fn duplicate(&self, member: &Member<'_>, name: String, first: usize) -> Error {
        Error::DuplicateKey { place: self.place(member.at, name), first: self.line(first) }
    }

    /// What serde_json says about the slice that begins at `base`, at its place in the whole text. It counts
    /// bytes from the line's beginning, including the one at fault, and calls a line's very beginning 0.
    fn syntax(&self, base: usize, error: &serde_json::Error) -> Error {
        let line = self.line(base) as usize + error.line().saturating_sub(1);
        let start = if error.line() <= 1 { base } else { self.lines.get(line - 1).copied().unwrap_or(base) };
        let mut offset = (start + error.column().saturating_sub(1)).min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let (line, column) = self.position(offset);
        let why = error.to_string();
        let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why);
        Error::Syntax { file: self.path.to_owned(), line, column, why: why.to_owned() }
    }
}

/// The type of a JSON value, which its first character tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Json {
    Object,
    Array,
    String,
    Boolean,
    Null,
    Number,
}

impl Json {
    fn of(value: &RawValue) -> Self {
        match value.get().as_bytes().first() {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b'"') => Self::String,
            Some(b't' | b'f') => Self::Boolean,
            Some(b'n') => Self::Null,
            _ => Self::Number,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Boolean => "true or false",
            Self::Null => "null",
            Self::Number => "a number",
        }
    }
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

fn full(path: &str) -> String {
    join(SECTION, path).trim_end_matches('.').to_owned()
}

/// The names of the keys and groups directly below `prefix`.
fn children(prefix: &str) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for path in Key::ALL.iter().filter_map(|key| key.path()) {
        let below = if prefix.is_empty() {
            Some(path)
        } else {
            path.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'))
        };
        let Some(name) = below.and_then(|below| below.split('.').next()) else { continue };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The full path of the key that was probably meant: a neighbour, or one that was put in the wrong place.
fn suggestion(prefix: &str, name: &str, children: &[&'static str]) -> Option<String> {
    if let Some(child) = nearest(name, children.iter().copied()) {
        return Some(full(&join(prefix, child)));
    }
    let named = |of: fn(&'static str, Key) -> &'static str| {
        let keys = || Key::ALL.iter().filter_map(|key| key.path().map(|path| (path, of(path, *key))));
        let found = nearest(name, keys().map(|(_, name)| name))?;
        keys().find(|(_, name)| *name == found).map(|(path, _)| full(path))
    };
    named(|path, _| path)
        .or_else(|| named(|path, _| path.rsplit('.').next().unwrap_or(path)))
        .or_else(|| named(|path, key| key.option().unwrap_or(path)))
}

/// A key's name as a message shows it: whatever a terminal or a reader could stumble over is quoted.
fn printable(name: &str) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-$".contains(c));
    if plain && name.len() <= 60 { name.to_owned() } else { value::shown(name) }
}

/// What a key takes in the file.
fn allowed(key: Key) -> String {
    let words = |words: &[&str]| words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    match key.kind() {
        Kind::Switch => "true or false".to_owned(),
        Kind::Words(list) => format!("one of {}", words(list)),
        Kind::WordsOrSwitch(list) => format!("true, false or one of {}", words(list)),
        Kind::Text => "a string".to_owned(),
        Kind::Path => "a string, an absolute path".to_owned(),
        Kind::Size => "a number of bytes, or a string such as \"512M\" or \"2GiB\"".to_owned(),
        Kind::Duration => "a string such as \"90s\", \"5m\" or \"1h30m\"".to_owned(),
        Kind::Count => "a whole number".to_owned(),
        Kind::Number => "a number".to_owned(),
        Kind::Paths => "an array of strings, absolute paths".to_owned(),
        Kind::Texts => "an array of strings".to_owned(),
        Kind::Assignments => "an object, {\"NAME\": \"value\"}".to_owned(),
        Kind::Fallbacks => "an object, {\"rule\": \"weaker\"}".to_owned(),
    }
}

fn fallback(rule: &str, word: &str) -> Result<(String, value::Fallback), value::Error> {
    Ok((value::rule(rule)?, word.parse()?))
}

#[cfg(test)]
mod tests;
