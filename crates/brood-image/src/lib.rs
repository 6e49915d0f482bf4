//! Sources of templates: registries, archives, Debian package sets; unpacked into layers.
