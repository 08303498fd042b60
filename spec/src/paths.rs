//! Questions about paths that are asked hundreds of times for each plan.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether `path` is `dir` or lies below it. Both have to be absolute and normal (no empty, `.` or `..`
/// component, no `/` at the end), as real paths are: then comparing bytes says the same as
/// [`Path::starts_with`], which takes both apart into components, in a tenth of the time.
#[must_use]
pub fn is_within(path: &Path, dir: &Path) -> bool {
    let (path, dir) = (path.as_os_str().as_bytes(), dir.as_os_str().as_bytes());
    let Some(rest) = path.strip_prefix(dir) else { return false };
    rest.is_empty() || rest[0] == b'/' || dir == b"/"
}

/// Whether two paths are the same, byte for byte. For normal ones that is what comparing components says.
#[must_use]
pub fn is_same(one: &Path, other: &Path) -> bool {
    one.as_os_str() == other.as_os_str()
}

/// A path's parent and its last component; `None` where it has none, as `/` and what ends in `..`. What
/// [`Path::parent`] and [`Path::file_name`] say, in less time.
#[must_use]
pub fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let bytes = path.as_os_str().as_bytes();
    let cut = bytes.iter().rposition(|&byte| byte == b'/');
    if let Some(cut) = cut.filter(|&cut| cut > 0) {
        let (parent, name) = (&bytes[..cut], &bytes[cut + 1..]);
        let odd = name.is_empty()
            || name == b"."
            || name == b".."
            || parent.ends_with(b"/")
            || parent.ends_with(b"/.");
        if !odd {
            return Some((Path::new(OsStr::from_bytes(parent)), OsStr::from_bytes(name)));
        }
    }
    path.parent().zip(path.file_name())
}

/// How many components an absolute, normal path has, the root among them.
#[must_use]
pub fn depth(path: &Path) -> usize {
    let bytes = path.as_os_str().as_bytes();
    if bytes == b"/" { 1 } else { 1 + bytes.iter().filter(|&&byte| byte == b'/').count() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_a_path_apart_says_what_the_standard_library_says() {
        for path in [
            "/", "/a", "/a/b", "/a/b/c", "a", "a/b", "", "/a/", "/a//b", "/a/./b", "/a/b/.", "/a/..",
            "/a/../b", "//a", "/.",
        ] {
            let path = Path::new(path);
            assert_eq!(split(path), path.parent().zip(path.file_name()), "{}", path.display());
        }
        for path in ["/", "/a", "/a/b", "/a/b/c"] {
            assert_eq!(depth(Path::new(path)), Path::new(path).components().count(), "{path}");
        }
    }

    #[test]
    fn it_says_what_comparing_components_says() {
        let paths = ["/", "/a", "/a/b", "/a/bc", "/ab", "/a/b/c", "/b"];
        for path in paths.map(Path::new) {
            for dir in paths.map(Path::new) {
                assert_eq!(
                    is_within(path, dir),
                    path.starts_with(dir),
                    "{} in {}",
                    path.display(),
                    dir.display()
                );
            }
        }
    }
}
