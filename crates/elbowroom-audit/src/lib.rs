//! Which programs of an image would misread the host, and what to set.
//!
//! [`inventory`] reads an image or a root directory, without running or unpacking it; [`rules`] judges what was found; [`verb`] is
//! the command line. Begin with [`rules::verdict::assess`].
//!
//! What stays true: an image is hostile input, bounded in names, files, layers and bytes; `rules` is pure (`tools/house`
//! refuses the words).

pub mod inventory;
pub mod rules;
pub mod verb;
