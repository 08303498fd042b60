//! Bytes in JSON: text where they are text, hexadecimal digits where they are not. Hooks and paths may be
//! anything.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// Some bytes.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// A path's bytes.
    #[must_use]
    pub fn of_path(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }

    /// As a path.
    #[must_use]
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// As a path of its own.
    #[must_use]
    pub fn into_path(self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.0))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(&self.0) {
            return serializer.serialize_str(text);
        }
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("hex", &hex)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or an object with \"hex\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
        Ok(Bytes(text.as_bytes().to_vec()))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Bytes, A::Error> {
        let mut bytes = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "hex" {
                return Err(de::Error::unknown_field(&key, &["hex"]));
            }
            bytes = Some(
                unhex(&map.next_value::<String>()?).ok_or_else(|| de::Error::custom("not hexadecimal"))?,
            );
        }
        bytes.map(Bytes).ok_or_else(|| de::Error::missing_field("hex"))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

/// A map with [`Bytes`] as keys, as a list of pairs: JSON's own maps have strings as keys.
pub mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// For `#[serde(with = "pairs")]`.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    /// For `#[serde(with = "pairs")]`.
    ///
    /// # Errors
    /// The deserializer's own.
    pub fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_survive() {
        for bytes in [b"text\n".to_vec(), b"\xff\x00".to_vec(), Vec::new()] {
            let json = serde_json::to_string(&Bytes(bytes.clone())).unwrap();
            assert_eq!(serde_json::from_str::<Bytes>(&json).unwrap().0, bytes, "{json}");
        }
        for bad in ["{\"hex\":\"f\"}", "{\"hex\":\"zz\"}", "{}", "7", "{\"x\":\"\"}"] {
            assert!(serde_json::from_str::<Bytes>(bad).is_err(), "{bad}");
        }
    }
}
