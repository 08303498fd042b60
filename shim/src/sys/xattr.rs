//! Extended attributes (xattr(7)).

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest value that is copied; those of overlayfs are a byte or a short path.
const MAX_VALUE: usize = 4096;

/// Copies one attribute, if the file has it; links are not followed.
pub fn copy(from: &Path, to: &Path, name: &CStr) -> io::Result<()> {
    let from = CString::new(from.as_os_str().as_bytes())?;
    let to = CString::new(to.as_os_str().as_bytes())?;
    let mut value = [0u8; MAX_VALUE];
    // SAFETY: both strings are NUL-terminated; the kernel writes at most the buffer's length.
    let length =
        unsafe { libc::lgetxattr(from.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let Ok(length) = usize::try_from(length) else {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENODATA | libc::ENOTSUP | libc::EPERM) => Ok(()),
            _ => Err(error),
        };
    };
    // SAFETY: as above; the kernel reads `length` bytes of the buffer.
    let done = unsafe { libc::lsetxattr(to.as_ptr(), name.as_ptr(), value.as_ptr().cast(), length, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
