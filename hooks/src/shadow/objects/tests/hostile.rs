//! What a turn can put where its objects belong.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use gix::zlib::Compression;
use gix::zlib::stream::deflate;

use super::*;

/// What a command prints, given this input.
pub(super) fn output_of(command: &mut Command, input: &[u8]) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn deflated(pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<u8> {
    let mut stream = deflate::Write::new(Vec::new(), Compression::BEST_SPEED);
    for piece in pieces {
        stream.write_all(piece.as_ref()).unwrap();
    }
    stream.flush().unwrap();
    stream.into_inner()
}

/// The id of these bytes, header included.
fn id_of(bytes: &[u8]) -> ObjectId {
    let mut hasher = gix::hash::hasher(gix::hash::Kind::Sha1);
    hasher.update(bytes);
    hasher.try_finalize().unwrap()
}

/// Puts a file where an object belongs.
fn plant(p: &Pair, id: &ObjectId, content: &[u8]) {
    let path = p.loose(id);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _ = std::fs::remove_file(&path);
    std::fs::write(path, content).unwrap();
}

#[test]
fn an_honest_stream_of_our_own_passes() {
    let p = Pair::new();
    let bytes = b"blob 5\0hello";
    plant(&p, &id_of(bytes), &deflated([bytes]));
    assert_eq!(p.store().gather().unwrap().objects, 1);
    p.bring(&[id_of(bytes)]);
}

#[test]
fn objects_that_are_not_what_they_say() {
    let p = Pair::new();
    let honest = b"blob 5\0hello".as_slice();
    let whole = deflated([honest]);
    let forged: Vec<(&str, ObjectId, Vec<u8>)> = vec![
        ("another's name", id_of(b"blob 5\0other"), whole.clone()),
        ("empty", id_of(b"1"), Vec::new()),
        ("no stream", id_of(b"2"), vec![0xff; 300]),
        ("zeros", id_of(b"3"), vec![0; 300]),
        ("truncated", id_of(honest), whole[..whole.len() - 3].to_vec()),
        ("garbage behind", id_of(b"blob 1\0x"), [deflated([b"blob 1\0x"]), b"garbage".to_vec()].concat()),
        ("two streams", id_of(b"blob 1\0y"), [deflated([b"blob 1\0y"]), deflated([b""])].concat()),
        ("said to be smaller", id_of(b"blob 4\0hello"), deflated([b"blob 4\0hello"])),
        ("said to be larger", id_of(b"blob 6\0hello"), deflated([b"blob 6\0hello"])),
        ("leading zero", id_of(b"blob 05\0hello"), deflated([b"blob 05\0hello"])),
        ("sign", id_of(b"blob +5\0hello"), deflated([b"blob +5\0hello"])),
        ("no size", id_of(b"blob \0hello"), deflated([b"blob \0hello"])),
        ("no number", id_of(b"blob x\0hello"), deflated([b"blob x\0hello"])),
        (
            "beyond numbers",
            id_of(b"blob 99999999999999999999999\0"),
            deflated([b"blob 99999999999999999999999\0"]),
        ),
        ("no kind", id_of(b"blub 5\0hello"), deflated([b"blub 5\0hello"])),
        ("no header", id_of(&[b'b'; 100]), deflated([[b'b'; 100]])),
        ("header only", id_of(b"blob 5"), deflated([b"blob 5"])),
    ];
    for (_, id, content) in &forged {
        plant(&p, id, content);
    }
    let store = p.store();
    let gathered = store.gather().unwrap();
    assert_eq!(gathered, Gathered { refused: forged.len(), ..Gathered::default() });
    assert_eq!(store.gather().unwrap(), Gathered::default(), "none is hashed again");
    for (what, id, _) in &forged {
        assert!(!store.admit(&[*id]).unwrap().has(id), "{what}");
        assert!(!p.has(id), "{what}");
    }
    // One that is put right is met again.
    plant(&p, &id_of(honest), &whole);
    assert_eq!(store.gather().unwrap().objects, 1);
    // Nothing of what was refused is left in the quarantine.
    let files = std::fs::read_dir(p.s.path("state/quarantine")).unwrap();
    assert!(files.flatten().all(|item| !item.file_name().to_string_lossy().starts_with("tmp")));
}

#[test]
fn streams_without_end() {
    let p = Pair::new();
    // 1 GB of zeros in 1 MB: more than a tree may have, and less than the header says.
    let zeros = vec![0; 1 << 20];
    for (count, header) in
        [&b"tree 1073741824\0"[..], b"blob 5\0", b"blob 1099511627776\0"].iter().enumerate()
    {
        let pieces = std::iter::once(header.to_vec()).chain((0..64).map(|_| zeros.clone()));
        plant(&p, &id_of(&[b'1', u8::try_from(count).unwrap()]), &deflated(pieces));
    }
    let store = p.store();
    let gathered = store.gather().unwrap();
    assert_eq!(gathered, Gathered { refused: 1, left: 2, ..Gathered::default() });
}

#[test]
fn things_that_are_no_objects() {
    let p = Pair::new();
    let tip = p.commit("file", "two\n");
    let objects = p.shadow.join("objects");
    let secret = p.s.path("secret");
    std::fs::write(&secret, deflated([b"blob 6\0secret"])).unwrap();
    let name = |digit: char| objects.join("77").join(digit.to_string().repeat(38));
    std::fs::create_dir_all(objects.join("77")).unwrap();
    std::os::unix::fs::symlink(&secret, name('0')).unwrap();
    nix::unistd::mkfifo(&name('1'), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir(name('2')).unwrap();
    std::os::unix::net::UnixListener::bind(name('3')).unwrap();
    std::os::unix::fs::symlink("/dev/zero", name('4')).unwrap();
    std::os::unix::fs::symlink("/nowhere", name('5')).unwrap();
    // Fan-out directories that lead elsewhere, or nowhere.
    std::os::unix::fs::symlink(p.host.join("objects/pack"), objects.join("ff")).unwrap();
    std::fs::write(objects.join("fe"), "").unwrap();
    nix::unistd::mkfifo(&objects.join("fd"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Not git's names, and what git has not finished.
    std::fs::write(objects.join("77/tmp_obj_abc"), "x").unwrap();
    std::fs::write(objects.join("77").join("A".repeat(38)), "x").unwrap();
    std::fs::write(objects.join("77/short"), "x").unwrap();
    let packs = objects.join("pack");
    let pack = |digit: &str, extension: &str| packs.join(format!("pack-{}.{extension}", digit.repeat(40)));
    for digit in ["1", "2", "3", "4"] {
        std::fs::write(pack(digit, "idx"), "").unwrap();
    }
    std::os::unix::fs::symlink(&secret, pack("1", "pack")).unwrap();
    nix::unistd::mkfifo(&pack("2", "pack"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir(pack("3", "pack")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", pack("4", "pack")).unwrap();
    std::fs::write(packs.join("tmp_pack_abc"), "x").unwrap();
    std::fs::write(packs.join("evil.pack"), "x").unwrap();
    // Its index is not there yet.
    std::fs::write(pack("5", "pack"), "PACK").unwrap();
    let gathered = p.store().gather().unwrap();
    assert_eq!(gathered, Gathered { objects: 3, refused: 6 + 3 + 4, ..Gathered::default() });
    p.bring(&[tip]);
    p.land("main", &tip);
    assert!(!p.has(&id_of(b"blob 6\0secret")));
}

#[test]
fn a_device_in_place_of_an_object() {
    let p = Pair::new();
    let path = p.loose(&id_of(b"1"));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mode = nix::sys::stat::Mode::S_IRWXU;
    let zero = nix::sys::stat::makedev(1, 5);
    if nix::sys::stat::mknod(&path, nix::sys::stat::SFlag::S_IFCHR, mode, zero).is_err() {
        // Only root can make one; a turn that cannot has one way less.
        return;
    }
    assert_eq!(p.store().gather().unwrap(), Gathered { refused: 1, ..Gathered::default() });
}

#[test]
fn directories_that_are_something_else() {
    for what in ["symlink", "fifo", "file", "absent"] {
        for place in ["objects", "objects/pack"] {
            let p = Pair::new();
            let path = p.shadow.join(place);
            std::fs::remove_dir_all(&path).unwrap();
            match what {
                "symlink" => std::os::unix::fs::symlink(p.host.join(place), &path).unwrap(),
                "fifo" => nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                "file" => std::fs::write(&path, "x").unwrap(),
                _ => {}
            }
            let refused = usize::from(what != "absent");
            let gathered = p.store().gather().unwrap();
            assert_eq!(gathered, Gathered { refused, ..Gathered::default() }, "{what} {place}");
        }
    }
}

#[test]
fn what_may_not_be_read() {
    let p = Pair::new();
    let tip = p.commit("file", "two\n");
    let path = p.loose(&tip);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let gathered = p.store().gather().unwrap();
    if nix::unistd::Uid::effective().is_root() {
        assert_eq!(gathered.objects, 3);
    } else {
        assert_eq!(gathered, Gathered { objects: 2, refused: 1, ..Gathered::default() });
        assert!(!p.store().admit(&[tip]).unwrap().has(&tip));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        p.bring(&[tip]);
    }
}

/// The shadow's only pack, once everything is in it.
fn packed(p: &Pair) -> PathBuf {
    p.inside(&["gc", "-q"]);
    let list = std::fs::read_dir(p.shadow.join("objects/pack")).unwrap();
    let path =
        list.flatten().map(|item| item.path()).find(|path| path.extension().is_some_and(|e| e == "pack"));
    let path = path.unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

#[test]
fn packs_that_lie() {
    let p = Pair::new();
    let tip = p.commit("file", &"text\n".repeat(1000));
    let path = packed(&p);
    let honest = std::fs::read(&path).unwrap();
    let end = honest.len();
    let changed = |at: usize| {
        let mut bytes = honest.clone();
        bytes[at] ^= 0x55;
        bytes
    };
    let mut huge = honest.clone();
    huge[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("header only", honest[..12].to_vec()),
        ("truncated", honest[..end - 30].to_vec()),
        ("without its checksum", honest[..end - 20].to_vec()),
        ("another checksum", changed(end - 1)),
        ("another version", changed(7)),
        ("another content", changed(40)),
        ("garbage behind", [honest.clone(), b"garbage".to_vec()].concat()),
        ("4 billion objects", huge),
        ("not a pack", b"garbage".repeat(100)),
    ];
    let store = p.store();
    for (what, content) in cases {
        std::fs::write(&path, &content).unwrap();
        let gathered = store.gather().unwrap();
        assert_eq!(gathered, Gathered { refused: 1, ..Gathered::default() }, "{what}");
        assert_eq!(store.gather().unwrap(), Gathered::default(), "{what}: read once");
        let left = std::fs::read_dir(p.s.path("state/quarantine/pack")).unwrap().count();
        assert_eq!(left, 0, "{what}");
        assert!(!store.admit(&[tip]).unwrap().has(&tip), "{what}");
    }
    // Its index and what else is beside it are not believed.
    std::fs::write(&path, &honest).unwrap();
    for extension in ["idx", "rev", "bitmap", "mtimes", "keep"] {
        let _ = std::fs::remove_file(path.with_extension(extension));
        std::fs::write(path.with_extension(extension), "garbage").unwrap();
    }
    for name in ["pack/multi-pack-index", "info/commit-graph"] {
        let _ = std::fs::remove_file(p.shadow.join("objects").join(name));
        p.s.write(p.shadow.join("objects").join(name), "garbage");
    }
    assert_eq!(store.gather().unwrap().packs, 1);
    assert!(store.admit(&[tip]).unwrap().has(&tip));
    p.land("main", &tip);
}

#[test]
fn a_thin_pack_and_a_delta_bomb() {
    let p = Pair::new();
    p.commit("file", &"text\n".repeat(1000));
    let tip = p.commit("file", &format!("{}more\n", "text\n".repeat(1000)));
    let mut command = p.s.command("w");
    command.args(["pack-objects", "--thin", "--stdout", "-q", "--revs"]);
    let pack = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pack.spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{tip}\n^{tip}^\n").as_bytes()).unwrap();
    let thin = child.wait_with_output().unwrap().stdout;
    let packs = p.shadow.join("objects/pack");
    let place = |digit: &str, bytes: &[u8]| {
        std::fs::write(packs.join(format!("pack-{}.pack", digit.repeat(40))), bytes).unwrap();
        std::fs::write(packs.join(format!("pack-{}.idx", digit.repeat(40))), "").unwrap();
    };
    place("1", &thin);
    place("2", &bomb(8 << 30));
    for directory in std::fs::read_dir(p.shadow.join("objects")).unwrap().flatten() {
        if directory.file_name().len() == 2 {
            std::fs::remove_dir_all(directory.path()).unwrap();
        }
    }
    let store = p.store();
    assert_eq!(store.gather().unwrap(), Gathered { refused: 2, ..Gathered::default() });
    assert!(!store.admit(&[tip]).unwrap().has(&tip));
    // The control: with a result of a size that fits the same pack is taken.
    place("3", &bomb(8 << 20));
    assert_eq!(store.gather().unwrap(), Gathered { packs: 1, ..Gathered::default() });
    p.check();
}

/// A pack of a blob of 64 KB and of a delta that copies it over and over, to so many bytes (gitformat-pack(5)).
fn bomb(result: usize) -> Vec<u8> {
    let base = vec![b'x'; 0x10000];
    let number = |mut value: usize| {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        bytes.push(u8::try_from(value).unwrap());
        bytes
    };
    let header = |kind: u8, size: usize| {
        let mut first = kind << 4 | u8::try_from(size & 15).unwrap();
        let rest = size >> 4;
        if rest == 0 {
            return vec![first];
        }
        first |= 0x80;
        [vec![first], number(rest)].concat()
    };
    // Copy 64 KB (a size of 0) from offset 0.
    let delta = [number(base.len()), number(result), vec![0x80; result / 0x10000]].concat();
    let blob = [header(3, base.len()), deflated([&base])].concat();
    let text = [format!("blob {}\0", base.len()).into_bytes(), base].concat();
    let of_base = [header(7, delta.len()), id_of(&text).as_slice().to_vec(), deflated([&delta])].concat();
    let mut pack =
        [b"PACK".to_vec(), 2_u32.to_be_bytes().to_vec(), 2_u32.to_be_bytes().to_vec(), blob, of_base]
            .concat();
    let checksum = id_of(&pack);
    pack.extend_from_slice(checksum.as_slice());
    pack
}

#[test]
fn a_turn_that_writes_meanwhile() {
    let p = Pair::new();
    let store = p.store();
    let script = "for i in $(seq 60); do echo $i > file; git commit -qam $i; [ $((i % 20)) = 0 ] && git gc -q --prune=now; done; true";
    let mut command = Command::new("sh");
    let git = p.s.command("w");
    command.current_dir(p.s.path("w")).args(["-c", script]);
    for (name, value) in git.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let mut child = command.spawn().unwrap();
    let mut runs = 0;
    while child.try_wait().unwrap().is_none() {
        store.gather().unwrap();
        if let Ok(tip) = std::fs::read_to_string(p.shadow.join("refs/heads/main"))
            && let Ok(tip) = ObjectId::from_hex(tip.trim().as_bytes())
        {
            store.admit(&[tip]).unwrap();
        }
        runs += 1;
    }
    assert!(runs > 3, "{runs}");
    let tip = p.id("HEAD");
    p.bring(&[tip]);
    p.land("main", &tip);
    assert_eq!(p.outside(&["rev-list", "--count", "main"]), "61");
}

#[test]
fn tips_that_are_none() {
    let p = Pair::new();
    let store = p.store();
    let absent = id_of(b"1");
    let null = ObjectId::null(p.kind);
    let foreign = ObjectId::null(gix::hash::Kind::Sha256);
    let head = p.id("HEAD");
    let admitted = store.admit(&[absent, null, foreign, head, head]).unwrap();
    assert_eq!(admitted.tips.len(), 4);
    assert!(admitted.has(&head));
    assert_eq!(admitted.refused().count(), 3);
}
