//! Archives that attack: what is refused, and what is contained.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use brood_image::{ErrorKind, FetchOptions, ImageLayer, Limits, NOBODY_ID, NoProgress, Source, fetch};
use tar::EntryType;

use crate::crafted::Crafted;
use crate::support::{BASE, Place, chain, view, xattrs};

/// A place with a directory beside the layers that no archive may reach.
struct Target {
    place: Place,
    limits: Limits,
}

impl Target {
    fn new() -> Self {
        let place = Place::new();
        fs::create_dir(place.path("outside")).unwrap();
        fs::write(place.path("outside/secret"), "untouched").unwrap();
        Self { place, limits: Limits::default() }
    }

    fn unpack(&self, archive: &[u8]) -> Result<ImageLayer, brood_image::ImageError> {
        let file = self.place.path("archive");
        fs::write(&file, archive).unwrap();
        let source: Source = format!("tar:{}", file.display()).parse().unwrap();
        let mut options: FetchOptions = self.place.options();
        options.unpack.limits = self.limits;
        options.unpack.durable = false;
        let result = fetch(&source, &options, &NoProgress);
        let outside = view(&self.place.path("outside"));
        assert_eq!(outside.len(), 2, "something was made outside: {:?}", outside.keys());
        assert_eq!(outside[&PathBuf::from("secret")].content, b"untouched");
        assert_eq!(outside[&PathBuf::from("secret")].links, 1);
        result.map(|image| image.layers.into_iter().next().unwrap())
    }

    /// Unpacks, which must fail with an error of this kind that says `part`, and leave nothing.
    fn refuses(&self, archive: &[u8], kind: ErrorKind, part: &str) {
        let error = match self.unpack(archive) {
            Ok(layer) => panic!("accepted, where '{part}' was expected: {:?}", view(&layer.path).keys()),
            Err(error) => error,
        };
        let text = chain(&error);
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains(part), "'{text}' does not say '{part}'");
        assert_eq!(self.place.names_in_layers_dir(), [""; 0], "left behind after: {text}");
    }

    fn refuses_each(&self, cases: Vec<(Crafted, &str)>) {
        for (archive, part) in cases {
            self.refuses(&archive.finish(), ErrorKind::Refused, part);
        }
    }

    fn accepts(&self, archive: Crafted) -> ImageLayer {
        self.unpack(&archive.finish()).unwrap_or_else(|error| panic!("{}", chain(&error)))
    }
}

#[test]
fn paths_that_climb_or_lie_are_refused() {
    let target = Target::new();
    let new = Crafted::new;
    let out = target.place.path("outside/evil").display().to_string();
    let nul = |key| new().pax(&[(key, b"a\0b")]).symlink("x", "y");
    target.refuses_each(vec![
        (new().file("../evil", "x"), "'..'"),
        (new().file("a/../../evil", "x"), "'..'"),
        (new().file("/../../outside/evil", "x"), "'..'"),
        (new().dir(".."), "'..'"),
        (new().file("", "x"), "no name"),
        (new().file("./", "x").file("./.", "y"), "no name"),
        (new().symlink(".", "x"), "no name"),
        (new().hard_link("/", "x"), "no name"),
        (nul("path"), "zero byte"),
        (nul("linkpath"), "link target"),
        (new().symlink("x", ""), "link target"),
        (new().pax(&[("path", &[b'a'; 5000])]).file("x", ""), "longer than 4095"),
        (new().pax(&[("path", "a/".repeat(600).as_bytes())]).dir("x"), "512 directories deep"),
        (new().symlink("up", "../../outside").file("up/evil", "x"), "out of the layer"),
        (new().dir("d").symlink("d/up", "../../outside").file("d/up/evil", "x"), "out of the layer"),
        (new().symlink("a", "b").symlink("b", "a").file("a/x", "x"), "in a circle"),
        (new().symlink("up", "x/../../../outside").dir("x").file("up/evil", "x"), "out of the layer"),
        (new().file("file", "").file("file/x", "x"), "no directory"),
        (new().file(".wh.d/x", "x"), "reserved"),
    ]);
    // Absolute paths and absolute links count from the root of the layer, as they do inside a sandbox.
    let layer = target.accepts(
        new().symlink("link", &out[..out.len() - "/evil".len()]).file("link/evil", "contained").file("/abs", "x"),
    );
    let inside = layer.path.join(out.trim_start_matches('/'));
    assert_eq!(fs::read_to_string(inside).unwrap(), "contained");
    assert!(layer.path.join("abs").is_file());
}

#[test]
fn hard_links_reach_only_files_of_the_layer() {
    let target = Target::new();
    let new = Crafted::new;
    let secret = target.place.path("outside/secret").display().to_string();
    target.refuses_each(vec![
        (new().hard_link("x", &secret), "hard link"),
        (new().hard_link("x", "../outside/secret"), "hard link"),
        (new().hard_link("x", "../../../../../../../../etc/passwd"), "hard link"),
        (new().symlink("up", "../../outside").hard_link("x", "up/secret"), "out of the layer"),
        (new().dir("d").hard_link("x", "d"), "hard link"),
        (new().hard_link("x", "/"), "hard link"),
        (new().hard_link("x", ""), "hard link"),
        (new().hard_link("x", "x"), "hard link"),
        (new().file(".wh.gone", "").hard_link("x", "gone"), "hard link"),
        (new().file("a", "").hard_link(".", "a"), "no name"),
    ]);
    // A hard link to a symbolic link is one to the link itself and never to what it points to.
    let layer = target.accepts(new().symlink("s", &secret).hard_link("t", "s").file("f", "1").hard_link("f", "f"));
    assert!(layer.path.join("t").symlink_metadata().unwrap().is_symlink());
    assert_eq!(layer.path.join("f").metadata().unwrap().nlink(), 1);
}

#[test]
fn devices_never_appear() {
    let target = Target::new();
    let new = Crafted::new;
    target.refuses_each(vec![
        (new().device("dev/sda", EntryType::Block, 8, 0), "block device (8:0)"),
        (new().device("dev/mem", EntryType::Char, 1, 1), "(1:1)"),
        (new().device("dev/kmsg", EntryType::Char, 1, 11), "(1:11)"),
        (new().device("whiteout", EntryType::Char, 0, 0), "(0:0)"),
        (new().device("fuse", EntryType::Char, 10, 229), "(10:229)"),
        (new().entry("odd", EntryType::new(b'Q'), b"", |_| {}), "unknown kind 'Q'"),
    ]);
    let null = new().device("dev/null", EntryType::Char, 1, 3).device("d/ptmx", EntryType::Char, 5, 2).file("f", "");
    let layer = target.accepts(null);
    assert_eq!(layer.notes.devices_skipped, 2);
    assert!(!layer.path.join("dev/null").exists() && !layer.path.join("d/ptmx").exists());
}

#[test]
fn later_entries_replace_earlier_ones_without_following_them() {
    let target = Target::new();
    let out = target.place.path("outside").display().to_string();
    let layer = target.accepts(
        Crafted::new()
            .file("twice", "first")
            .file("twice", "second")
            // A link that became a directory is not the link any more.
            .symlink("d", &out)
            .dir("d")
            .file("d/secret", "mine")
            // A file over a link replaces the link and not what it points to.
            .symlink("s", &format!("{out}/secret"))
            .file("s", "mine")
            .hard_link("h", "s")
            .file("h", "other")
            // A whole tree is replaced by a file, and the file by a tree again, with files made right after.
            .dir("tree/a/b")
            .file("tree/a/b/c", "old")
            .file("tree", "file")
            .dir("tree")
            .file("tree/new", "new")
            .file("f", "")
            .symlink("f", "tree")
            .file("f/through", "x"),
    );
    let read = |path: &str| fs::read_to_string(layer.path.join(path)).unwrap();
    assert_eq!(read("twice"), "second");
    assert_eq!(read("d/secret"), "mine");
    assert_eq!((read("s"), read("h")), ("mine".to_owned(), "other".to_owned()));
    assert!(!layer.path.join("tree/a").exists());
    assert_eq!((read("tree/new"), read("tree/through")), ("new".to_owned(), "x".to_owned()));
}

#[test]
fn whiteouts_take_the_form_that_overlayfs_knows() {
    let target = Target::new();
    let new = Crafted::new;
    target.refuses_each(vec![
        (new().file(".wh.", ""), "whiteout"),
        (new().file("d/.wh..", ""), "whiteout"),
        (new().file("d/.wh...", ""), "whiteout"),
    ]);
    let layer = target.accepts(
        new()
            .file("d/.wh.gone", "")
            .dir("opaque")
            .file("opaque/.wh..wh..opq", "")
            .file(".wh..wh.plnk", "")
            // Hidden and made anew, in either order: what lies below must not shine through.
            .file(".wh.both", "")
            .dir("both")
            .dir("other")
            .file(".wh.other", "")
            .file(".wh.implicit", "")
            .file("implicit/x", "")
            // Marks below what hides everything anyway.
            .file("file", "")
            .file("file/.wh.x", "")
            .symlink("link", "d")
            .file("link/.wh.y", "")
            .file(".wh.w", "")
            .file("w/.wh.z", ""),
    );
    let gone = layer.path.join("d/gone").symlink_metadata().unwrap();
    assert_eq!((gone.mode() & 0o170_000, gone.rdev()), (0o020_000, 0));
    let opaque = |path: &str| xattrs(&layer.path.join(path)) == [("trusted.overlay.opaque".to_owned(), b"y".to_vec())];
    for path in ["opaque", "both", "other", "implicit"] {
        assert!(opaque(path), "{path} is not opaque");
    }
    assert!(!opaque("d") && !layer.path.join("d/y").exists());
    assert!(layer.path.join("file").is_file());
    let hidden = layer.path.join("w").symlink_metadata().unwrap();
    assert_eq!(hidden.mode() & 0o170_000, 0o020_000, "a mark below a whiteout undid it");
    assert!(view(&layer.path).keys().all(|path| !path.display().to_string().contains(".wh.")));
    assert!(!layer.notes.opaque_root);
    assert!(target.accepts(new().file(".wh..wh..opq", "")).notes.opaque_root);
}

#[test]
fn attributes_that_mean_something_to_the_host_are_left_out() {
    let target = Target::new();
    let new = Crafted::new;
    let big = vec![b'x'; 70_000];
    target.refuses_each(vec![
        (new().pax(&[("SCHILY.xattr.user.big", &big)]).file("x", ""), "user.big"),
        (new().pax(&[("SCHILY.xattr.", b"x")]).file("x", ""), "impossible name"),
        (new().pax(&[(&format!("SCHILY.xattr.user.{}", "n".repeat(300)), b"x")]).file("x", ""), "impossible name"),
    ]);
    let layer = target.accepts(
        new()
            .pax(&[
                ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
                ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
                ("SCHILY.xattr.user.overlay.opaque", b"y"),
                ("SCHILY.xattr.security.selinux", b"system_u"),
                ("SCHILY.xattr.user.kept", b"v"),
            ])
            .dir("d")
            .pax(&[("SCHILY.xattr.security.capability", b"nonsense")])
            .file("f", "")
            .pax(&[("uid", b"4000000000"), ("gid", b"7")])
            .entry("foreign", EntryType::Regular, b"", |header| header.set_mode(0o6755)),
    );
    assert_eq!(xattrs(&layer.path.join("d")), [("user.kept".to_owned(), b"v".to_vec())]);
    assert_eq!(xattrs(&layer.path.join("f")), []);
    assert_eq!(layer.notes.xattrs_skipped, 5);
    let foreign = layer.path.join("foreign").metadata().unwrap();
    assert_eq!((foreign.uid(), foreign.gid(), foreign.mode() & 0o7777), (BASE + NOBODY_ID, BASE + 7, 0o755));
    assert_eq!(layer.notes.owners_replaced, 1);
}

#[test]
fn numbers_that_lie_are_refused() {
    let target = Target::new();
    let new = Crafted::new;
    let huge = |size: u64| new().entry("x", EntryType::Regular, b"abc", |header| header.set_size(size));
    target.refuses(&huge(u64::MAX >> 1).finish(), ErrorKind::Refused, "bytes of files");
    target.refuses(&huge(1 << 20).finish(), ErrorKind::Corrupt, "truncated");
    target.refuses(&new().file("x", "abc").bytes(), ErrorKind::Corrupt, "end-of-archive marker is missing");
    target.refuses(b"", ErrorKind::Corrupt, "truncated");
    target.refuses(b"not an archive", ErrorKind::Corrupt, "truncated");
    target.refuses(&[b'x'; 2048], ErrorKind::Corrupt, "no tar header");
    let letters = |header: &mut tar::Header| header.as_old_mut().size.copy_from_slice(b"zzzzzzzzzzzz");
    target.refuses(&new().entry("x", EntryType::Regular, b"", letters).finish(), ErrorKind::Corrupt, "no number");
    let mut flipped = new().file("name", "body").finish();
    flipped[0] ^= 1;
    target.refuses(&flipped, ErrorKind::Corrupt, "checksum");
    target.refuses(
        &new().entry("pax", EntryType::XHeader, b"99 path=x\n", |_| {}).finish(),
        ErrorKind::Corrupt,
        "record",
    );
    target.refuses(&new().pax(&[("path", b"x")]).finish(), ErrorKind::Corrupt, "describes no entry");
    let endless = new().entry("pax", EntryType::XHeader, b"", |header| header.set_size(1 << 40));
    target.refuses(&endless.finish(), ErrorKind::Refused, "headers of one entry");
    let named = new().entry("long", EntryType::GNULongName, b"", |header| header.set_size(1 << 40));
    target.refuses(&named.finish(), ErrorKind::Refused, "headers of one entry");
    // A size in an extended header counts for the data and for what follows alike: nothing is smuggled.
    let inner = new().file("smuggled", "").bytes();
    let layer = target.accepts(new().pax(&[("size", inner.len().to_string().as_bytes())]).entry(
        "outer",
        EntryType::Regular,
        &inner,
        |header| header.set_size(0),
    ));
    assert_eq!(view(&layer.path).len(), 2, "an entry was smuggled in");
    assert_eq!(fs::read(layer.path.join("outer")).unwrap(), inner);
}

#[test]
fn sparse_maps_that_lie_are_refused() {
    let target = Target::new();
    let sparse = |map: &str, size: &str, body: &[u8]| {
        let records: [(&str, &[u8]); 2] = [("GNU.sparse.map", map.as_bytes()), ("GNU.sparse.size", size.as_bytes())];
        Crafted::new().pax(&records).entry("s", EntryType::Regular, body, |_| {}).finish()
    };
    let ok = target.unpack(&sparse("0,2,10,2", "20", b"abcd")).unwrap();
    assert_eq!(fs::read(ok.path.join("s")).unwrap(), b"ab\0\0\0\0\0\0\0\0cd\0\0\0\0\0\0\0\0");
    fs::remove_dir_all(target.place.layers_dir()).unwrap();
    for (map, size, part) in [
        ("0,2,1,2", "20", "overlap"),
        ("0,2,30,2", "20", "behind its end"),
        ("0,2,10,3", "20", "add up"),
        ("18446744073709551615,2", "20", "wraps around"),
        ("0,x", "20", "malformed"),
    ] {
        target.refuses(&sparse(map, size, b"abcd"), ErrorKind::Corrupt, part);
    }
    // A file of terabytes that takes no space is still a file of terabytes to whoever copies it.
    target.refuses(&sparse("0,4", "9000000000000", b"abcd"), ErrorKind::Refused, "bytes of files");
    let version_1 = |body: &[u8]| {
        let records: [(&str, &[u8]); 3] =
            [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"20")];
        Crafted::new().pax(&records).entry("s", EntryType::Regular, body, |_| {}).finish()
    };
    target.refuses(&version_1(b"1\n0\n4\nabcd"), ErrorKind::Corrupt, "longer than its file");
    target.refuses(&version_1(&[b'9'; 4096]), ErrorKind::Refused, "headers of one entry");
    target.refuses(&version_1(&b"9999999999\n".repeat(200_000)), ErrorKind::Refused, "headers of one entry");
}

#[test]
fn depth_cannot_grow_through_links() {
    let mut target = Target::new();
    target.limits.depth_max = 20;
    let deep = "d/".repeat(15);
    let archive = Crafted::new().dir(&deep).symlink("x", &deep).dir(&format!("x/{deep}"));
    target.refuses(&archive.finish(), ErrorKind::Refused, "20 directories deep");
}

#[test]
fn limits_on_entries_and_bytes_hold() {
    let mut target = Target::new();
    target.limits.entries_max = 10;
    let many = (0..11).fold(Crafted::new(), |archive, index| archive.file(&format!("f{index}"), ""));
    target.refuses(&many.finish(), ErrorKind::Refused, "more than 10 entries");

    target.limits = Limits { layer_bytes_max: 1 << 20, ..Limits::default() };
    let zeros = vec![0; 4 << 20];
    let bomb = Crafted::new().entry("zeros", EntryType::Regular, &zeros, |_| {}).finish();
    target.refuses(&bomb, ErrorKind::Refused, "bytes of files");
    // Behind the end marker, where no entry is charged for it.
    let tail = [Crafted::new().file("f", "").finish(), zeros].concat();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tail).unwrap();
    target.refuses(&gzip.finish().unwrap(), ErrorKind::Refused, "uncompressed bytes");
}

#[test]
fn archives_that_explode_are_stopped() {
    let target = Target::new();
    let header = Crafted::new().entry("zeros", EntryType::Regular, b"", |header| header.set_size(4 << 30)).bytes();
    let mut bomb = zstd::Encoder::new(Vec::new(), 1).unwrap();
    bomb.write_all(&header).unwrap();
    for _ in 0..4 << 10 {
        bomb.write_all(&[0; 1 << 20]).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    assert!(bomb.len() < 1 << 20, "{} bytes are no bomb", bomb.len());
    target.refuses(&bomb, ErrorKind::Refused, "times its compressed size");
}

#[test]
fn damaged_compression_is_told_apart() {
    let target = Target::new();
    let archive = Crafted::new().file("f", &"content ".repeat(10_000)).finish();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&archive).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(&archive[..], 3).unwrap();
    for (format, good) in [("gzip", gzip), ("zstd", zstd)] {
        target.refuses(&good[..good.len() / 2], ErrorKind::Corrupt, format);
        let mut damaged = good.clone();
        damaged[good.len() / 2] ^= 0x55;
        // Without a checksum of its own the damage may only show in the archive inside.
        target.refuses(&damaged, ErrorKind::Corrupt, "get");
    }
    target.refuses(&[0xfd, b'7', b'z', b'X', b'Z', 0, 1, 2, 3], ErrorKind::Corrupt, "xz");
    target.refuses(b"BZh91AY&SY", ErrorKind::Corrupt, "bzip2");
}
