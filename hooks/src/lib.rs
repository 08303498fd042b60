#![forbid(unsafe_code)]
//! git bookkeeping
