//! Archives of local files.

use std::io::{self, Write};
use std::path::Path;

use tar::{Builder, HeaderMode};

/// Writes `source` as `name`; an empty name leaves out the directory and takes its content.
///
/// # Errors
/// When something cannot be read, or the archive's reader is gone.
pub fn write(archive: &mut impl Write, source: &Path, name: &Path) -> io::Result<()> {
    let mut builder = Builder::new(archive);
    builder.follow_symlinks(false);
    builder.sparse(false);
    builder.mode(HeaderMode::Complete);
    let metadata = source.symlink_metadata()?;
    let result = if !metadata.is_dir() {
        builder.append_path_with_name(source, name)
    } else if name.as_os_str().is_empty() {
        builder.append_dir_all(".", source)
    } else {
        builder.append_dir_all(name, source)
    };
    result.and_then(|()| builder.finish())
}
