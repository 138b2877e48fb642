// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tests of all layouts of libibverbs. Headers are checked against layouts, and for each layout a
//! child process loads a fake library of this layout instead of libibverbs.

use std::env;
use std::ffi::c_void;
use std::ffi::CStr;
use std::fs;
use std::mem::size_of;
use std::mem::zeroed;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;

use virtio_rdma_provider::cq;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::layouts;
use virtio_rdma_provider::layouts::Layout;
use virtio_rdma_provider::layouts::ARGUMENTS;
use virtio_rdma_provider::layouts::LAYOUTS;
use virtio_rdma_provider::libibverbs;
use virtio_rdma_provider::mw;

#[path = "../headers.rs"]
mod headers;

/// The number of arguments of a function in a release.
fn count_of(function: &str, first: u32, release: u32) -> usize {
    let is_added =
        |argument: &&layouts::Argument| argument.function == function && argument.since <= release;
    first as usize + ARGUMENTS.iter().filter(is_added).count()
}

fn operations_of(layout: &Layout) -> Vec<&'static str> {
    let has = |(name, since): (&'static str, u32)| (since <= layout.since).then_some(name);
    layouts::operations().filter_map(has).collect()
}

/// The parts of a release's bindings that the check reads.
fn bindings(release: u32) -> String {
    let layout = layouts::of_release(release).unwrap();
    let mut text = String::from("pub struct verbs_context_ops {\n");
    for name in operations_of(layout) {
        text += &format!("    pub {name}: Option<\n        fn(),\n    >,\n");
    }
    let size = layout.context_size;
    text += &format!("}}\n size_of::<verbs_context>() - {size}usize];\n");
    for (function, first) in layouts::functions() {
        let mut names: Vec<String> = (0..first).map(|index| format!("a{index}")).collect();
        for argument in &ARGUMENTS {
            if argument.function == function && argument.since <= release {
                names.insert(argument.index, argument.name.to_owned());
            }
        }
        text += &format!("pub fn {function}({}: u32);\n", names.join(": u32, "));
    }
    text
}

#[test]
fn headers_of_each_layout_fit_their_release_alone() {
    for layout in &LAYOUTS {
        let release = layout.since;
        let text = bindings(release);
        let declarations = headers::check(&text, release, layout.abi).unwrap();
        assert!(declarations.contains(&format!("HEADERS: u32 = {release};")));
        for other in LAYOUTS.iter().filter(|other| *other != layout) {
            let misfit = headers::check(&text, other.since, layout.abi).unwrap_err();
            assert!(
                misfit.contains(&format!("rdma-core {}", other.since)),
                "{misfit}"
            );
        }
    }
    // A release after the last known layout, with the same interface.
    let last = LAYOUTS.last().unwrap();
    assert!(headers::check(&bindings(last.since), last.since + 1, last.abi).is_ok());
}

#[test]
fn one_sentence_tells_what_does_not_fit() {
    let good = bindings(65);
    let misfit = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        let text = headers::check(&good.replacen(from, to, 1), 66, 65).unwrap_err();
        assert!(!text.contains('\n'));
        text
    };
    let text = misfit("pub poll_cq:", "pub poll_bar: Option<\n    pub poll_cq:");
    assert!(
        text.ends_with("operation 62 of struct verbs_context_ops is poll_bar, not poll_cq"),
        "{text}"
    );
    let text = misfit("pub unimport_pd:", "pub unimport_pf:");
    assert!(text.ends_with("is unimport_pf, not unimport_pd"), "{text}");
    let text = misfit("696usize", "704usize");
    assert!(
        text.ends_with("struct verbs_context has 704 bytes, not 696"),
        "{text}"
    );
    let text = misfit("fd_arr: u32, ", "");
    assert!(
        text.ends_with("ibv_cmd_get_context has 5 arguments, not 6"),
        "{text}"
    );
    let text = misfit("fd_arr: u32, a3: u32", "a3: u32, fd_arr: u32");
    assert!(
        text.ends_with("ibv_cmd_get_context has no argument fd_arr at 3"),
        "{text}"
    );
    let text = misfit("pub fn ibv_cmd_reg_mr(", "pub fn ibv_cmd_reg_mr2(");
    assert!(text.ends_with("there is no ibv_cmd_reg_mr"), "{text}");
    let text = headers::check(&good, 66, 66).unwrap_err();
    assert!(text.ends_with("its number is 66, not 65"), "{text}");
    let text = headers::check(&good, 38, 34).unwrap_err();
    assert_eq!(
        text,
        "rdma-core 38 is older than 39, the first that the provider is for"
    );
}

/// The first release of the layout that is chosen for a libibverbs with these exports.
fn chosen(exported: &[&str]) -> Option<u32> {
    let has = |name: &CStr| exported.contains(&name.to_str().unwrap());
    Layout::of(has).map(|layout| layout.since)
}

#[test]
fn what_libibverbs_exports_tells_its_layout() {
    let mut marks = Vec::new();
    for layout in &LAYOUTS {
        let mut room = [0; 32];
        let registration = layout.registration(&mut room).to_str().unwrap();
        assert_eq!(
            registration,
            format!("verbs_register_driver_{}", layout.abi)
        );
        marks.extend(layout.mark.map(|mark| mark.to_str().unwrap()));
        let exported = [&marks[..], &[registration]].concat();
        assert_eq!(chosen(&exported), Some(layout.since));
        // Exports that no layout has: marks without the registration function, a missing mark, a
        // mark of a later layout.
        assert_eq!(chosen(&marks), None);
        if marks.len() > 1 {
            assert_eq!(chosen(&exported[1..]), None);
        }
        for early in LAYOUTS.iter().filter_map(|other| other.mark) {
            let early = early.to_str().unwrap();
            if !marks.contains(&early) {
                let chosen = chosen(&[&exported[..], &[early]].concat());
                // Among layouts with the same ABI number, only the mark decides.
                assert_ne!(chosen, Some(layout.since), "{early}");
            }
        }
    }
    assert_eq!(chosen(&["verbs_register_driver_66"]), None);
}

/// The C source of a fake libibverbs. Its functions record their arguments.
fn source(abi: u32, marks: &[&str], layout: &Layout) -> String {
    let mut text = String::from(
        "#include <stdlib.h>\n#include <string.h>\n\
         long arguments[16]; void *registered; void *operations[128];\n",
    );
    text += &format!("void verbs_register_driver_{abi}(void *ops) {{ registered = ops; }}\n");
    for mark in marks {
        text += &format!("void {mark}(void) {{}}\n");
    }
    text += &format!(
        "void *_verbs_init_and_alloc_context(void *device, int fd, size_t size) {{\n\
             char *context = calloc(1, size);\n\
             *(size_t *)(context + {size} - {end} - 8) = {size};\n\
             return context;\n\
         }}\n\
         void verbs_set_ops(void *context, void *ops) {{\n\
             memcpy(operations, ops, sizeof(operations));\n\
         }}\n",
        size = layout.context_size,
        end = size_of::<ffi::ibv_context>(),
    );
    for (function, first) in layouts::functions() {
        if function.starts_with("ibv_cmd_") {
            let indices = 0..count_of(function, first, layout.since);
            let names: Vec<_> = indices
                .clone()
                .map(|index| format!("long a{index}"))
                .collect();
            let notes = indices.map(|index| format!("arguments[{index}] = a{index};"));
            text += &format!(
                "int {function}({}) {{ {} return 0; }}\n",
                names.join(", "),
                notes.collect::<String>()
            );
        } else if !text.contains(&format!("{function}(")) {
            text += &format!("void {function}(void) {{}}\n");
        }
    }
    text
}

/// Builds a fake libibverbs and runs [`with_the_libibverbs_that_is_loaded`] with it.
fn run_with(name: &str, abi: u32, marks: &[&str], layout: &Layout) -> Output {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    let library = folder.join("libibverbs.so.1");
    let map = folder.join("map");
    let write = |path: &Path, text: &str| fs::write(path, text).unwrap();
    write(&folder.join("ibverbs.c"), &source(abi, marks, layout));
    // The symbols have the same version as in rdma-core's library.
    write(&map, &format!("IBVERBS_PRIVATE_{abi} {{ global: *; }};\n"));
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&library)
        .arg(format!(
            "-Wl,-soname,libibverbs.so.1,--version-script,{}",
            map.display()
        ))
        .arg(folder.join("ibverbs.c"))
        .status();
    assert!(built.unwrap().success());
    Command::new(env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "with_the_libibverbs_that_is_loaded",
            "--nocapture",
        ])
        .env("LD_LIBRARY_PATH", &folder)
        .env("LAYOUT", layout.since.to_string())
        .output()
        .unwrap()
}

/// The marks of all layouts up to `layout`.
fn marks_until(layout: &Layout) -> Vec<&'static str> {
    let known = LAYOUTS.iter().filter(|other| other.since <= layout.since);
    known
        .filter_map(|layout| layout.mark)
        .map(|mark| mark.to_str().unwrap())
        .collect()
}

#[test]
fn calls_fit_a_libibverbs_of_each_layout() {
    for layout in &LAYOUTS {
        let name = format!("layout-{}", layout.since);
        let output = run_with(&name, layout.abi, &marks_until(layout), layout);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {words}");
        assert!(!words.contains("virtio_rdma: "), "{words}");
    }
}

#[test]
fn a_libibverbs_of_an_unknown_layout_gets_one_sentence() {
    let last = LAYOUTS.last().unwrap();
    let mut marks = marks_until(last);
    for abi in [66, 59] {
        let output = run_with(&format!("unknown-{abi}"), abi, &marks, last);
        let words = String::from_utf8_lossy(&output.stderr);
        let said = format!("virtio_rdma: {}", libibverbs::UNKNOWN);
        assert_eq!(
            words.lines().filter(|line| *line == said).count(),
            1,
            "{words}"
        );
        // The provider is not registered, and the process has not crashed.
        assert_eq!(output.status.code(), Some(101), "{words}");
        assert!(words.contains("there is no layout"), "{words}");
    }
    marks.clear();
    let output = run_with("unmarked", 65, &marks, last);
    assert_eq!(output.status.code(), Some(101));
}

/// The address of a symbol that the library exports.
fn symbol<T>(name: &CStr) -> *const T {
    // SAFETY: the name is a string.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?}");
    symbol.cast()
}

/// Checks the arguments of the last call: the given ones, and null for each argument that releases
/// have added to `function`.
fn assert_arguments(function: &str, release: u32, given: &[usize]) {
    let mut expected = given.to_vec();
    for argument in &ARGUMENTS {
        if argument.function == function && argument.since <= release {
            expected.insert(argument.index, 0);
        }
    }
    // SAFETY: the library has an array of this length.
    let arguments = unsafe { *symbol::<[usize; 16]>(c"arguments") };
    for (index, expected) in expected.into_iter().enumerate() {
        // The upper half of a register with a 32-bit argument is undefined.
        assert_eq!(
            arguments[index] as u32, expected as u32,
            "{function}: {index}"
        );
    }
}

#[test]
#[ignore = "other tests run it with a library of their own"]
fn with_the_libibverbs_that_is_loaded() {
    let release: u32 = env::var("LAYOUT").unwrap().parse().unwrap();
    let layout = libibverbs::layout().expect("there is no layout");
    assert_eq!(layout.since, release);
    // SAFETY: the library has this pointer.
    let registered: *const ffi::verbs_device_ops = unsafe { *symbol(c"registered") };
    // SAFETY: the provider has a name.
    let name = unsafe { CStr::from_ptr((*registered).name) };
    assert_eq!(name, c"virtio_rdma");

    let any = |number: usize| number as *mut c_void;
    // SAFETY: the library takes any arguments.
    unsafe {
        let context = libibverbs::allocate_context::<ffi::ibv_context>(any(1).cast(), 3).unwrap();
        let whole = libibverbs::whole(context);
        assert_eq!(
            context.byte_offset_from(whole) as usize + size_of::<ffi::ibv_context>(),
            layout.context_size
        );

        let mut operations: ffi::verbs_context_ops = zeroed();
        operations.alloc_mw = Some(mw::alloc_mw);
        operations.resize_cq = Some(cq::resize_cq);
        // The fake library does not fill in the public table, so the check of the operations fails.
        assert!(!libibverbs::set_operations(context, &operations));
        let taken = *symbol::<[usize; 128]>(c"operations");
        let names = operations_of(layout);
        for (index, taken) in taken.into_iter().enumerate() {
            let is_set = names
                .get(index)
                .is_some_and(|name| ["alloc_mw", "resize_cq"].contains(name));
            assert_eq!(taken != 0, is_set, "{index}");
        }

        libibverbs::get_context(context, any(2).cast(), 3, any(4).cast(), 5);
        assert_arguments(
            "ibv_cmd_get_context",
            release,
            &[whole as usize, 2, 3, 4, 5],
        );
        libibverbs::create_cq_ex(
            any(1).cast(),
            any(2).cast(),
            any(3).cast(),
            any(4).cast(),
            5,
            any(6).cast(),
            7,
        );
        assert_arguments("ibv_cmd_create_cq_ex", release, &[1, 2, 3, 4, 5, 6, 7, 0]);
        libibverbs::create_qp_ex2(
            any(1).cast(),
            any(2).cast(),
            any(3).cast(),
            any(4).cast(),
            5,
            any(6).cast(),
            7,
        );
        assert_arguments("ibv_cmd_create_qp_ex2", release, &[1, 2, 3, 4, 5, 6, 7]);
        libibverbs::reg_dmabuf_mr(any(1).cast(), 2, 3, 4, 5, 6, any(7).cast());
        assert_arguments("ibv_cmd_reg_dmabuf_mr", release, &[1, 2, 3, 4, 5, 6, 7]);
    }
}
