//! Questions about paths that are asked hundreds of times for each plan.

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

#[cfg(test)]
mod tests {
    use super::*;

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
