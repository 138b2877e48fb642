// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The C headers must match the ABI: a C compiler reports sizes, offsets and values.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use virtio_rdma_abi::{config, cqe, ctrl, event, feature, ib, qp, ring, uverbs, versions, wqe};

/// Numbers by name: values, sizes, and offsets and sizes of members.
type Numbers = BTreeMap<String, u64>;

/// A Rust name in snake case.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    let mut last = '_';
    for c in name.chars() {
        if c.is_ascii_uppercase() && (last.is_ascii_lowercase() || last.is_ascii_digit()) {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
        last = c;
    }
    snake
}

/// The name of a type without its module.
fn last(path: &str) -> String {
    let name = path.rsplit("::").next().unwrap_or(path).trim();
    name.to_owned()
}

/// The prefix of the C constants of an enumeration or mask.
fn prefix(path: &str) -> String {
    match last(path).as_str() {
        "Command" => "CMD".into(),
        "Feature" => "F".into(),
        name => snake(name).to_uppercase(),
    }
}

macro_rules! structures {
    ($numbers:expr, $names:expr, $($name:path,)*) => {$(
        let name = last(stringify!($name));
        let structure = format!("virtio_rdma_{}", snake(&name));
        $numbers.insert(structure.clone(), <$name>::SIZE as u64);
        for field in <$name>::FIELDS {
            let member = format!("{structure}.{}", field.name);
            $numbers.insert(format!("{member} at"), field.offset as u64);
            $numbers.insert(member, field.size as u64);
        }
        $names.insert(name);
    )*};
}

macro_rules! enumerations {
    ($numbers:expr, $names:expr, $($name:path,)*) => {$(
        for value in <$name>::ALL {
            let variant = snake(&format!("{value:?}")).to_uppercase();
            let name = format!("VIRTIO_RDMA_{}_{variant}", prefix(stringify!($name)));
            $numbers.insert(name, u64::from(value.value()));
        }
        $names.insert(last(stringify!($name)));
    )*};
}

macro_rules! masks {
    ($numbers:expr, $names:expr, $($name:path,)*) => {$(
        for (bit, value) in <$name>::BITS {
            let name = format!("VIRTIO_RDMA_{}_{bit}", prefix(stringify!($name)));
            $numbers.insert(name, u64::from(value.0));
        }
        $names.insert(last(stringify!($name)));
    )*};
}

macro_rules! constants {
    ($numbers:expr, $names:expr, $($name:path,)*) => {$(
        let name = last(stringify!($name));
        $numbers.insert(format!("VIRTIO_RDMA_{name}"), $name as u64);
        $names.insert(name);
    )*};
}

macro_rules! ranges {
    ($numbers:expr, $names:expr, $($name:path,)*) => {$(
        let name = last(stringify!($name));
        $numbers.insert(format!("VIRTIO_RDMA_{name}_MIN"), u64::from(*$name.start()));
        $numbers.insert(format!("VIRTIO_RDMA_{name}_MAX"), u64::from(*$name.end()));
        $names.insert(name);
    )*};
}

/// The numbers in the Rust sources, and the names of the types and constants covered.
fn of_rust() -> (Numbers, BTreeSet<String>) {
    let mut numbers = Numbers::new();
    // Not in the C headers: structures without members, a constant that the kernel defines, and the
    // version of this source.
    let mut names: BTreeSet<String> = ["CmdCreatePd", "Empty", "RELEASE", "VIRTIO_ID_RDMA"]
        .map(String::from)
        .into();
    structures!(
        numbers,
        names,
        config::Config,
        config::OwnRingsConfig,
        config::SrqConfig,
        config::RateLimitConfig,
        config::CqModerationConfig,
        config::CounterSetConfig,
        ring::RingAddr,
        event::Event,
        ctrl::CmdQueryPort,
        ctrl::RspQueryPort,
        ctrl::CmdSetPort,
        ctrl::CmdQueryPkey,
        ctrl::RspQueryPkey,
        ctrl::CmdAddGid,
        ctrl::CmdAddGidVlan,
        ctrl::CmdDelGid,
        ctrl::CmdQueryCounters,
        ctrl::RspQueryCounters,
        ctrl::CmdCreateCounterSet,
        ctrl::RspCreateCounterSet,
        ctrl::CmdDestroyCounterSet,
        ctrl::CmdBindCounterSet,
        ctrl::CmdQueryCounterSet,
        ctrl::CmdCreateCq,
        ctrl::RspCreateCq,
        ctrl::CmdCreateCqRing,
        ctrl::CmdDestroyCq,
        ctrl::CmdReqNotify,
        ctrl::CmdResizeCq,
        ctrl::CmdModifyCq,
        ctrl::RspResizeCq,
        ctrl::RspCreatePd,
        ctrl::CmdDestroyPd,
        ctrl::CmdGetDmaMr,
        ctrl::RspMr,
        ctrl::CmdCreateMr,
        ctrl::CmdMapMrSg,
        ctrl::RspMapMrSg,
        ctrl::CmdRegUserMr,
        ctrl::CmdRegUserMrPages,
        ctrl::CmdDeregMr,
        ctrl::CmdAllocMw,
        ctrl::RspAllocMw,
        ctrl::CmdDeallocMw,
        ctrl::CmdReregMr,
        ctrl::CmdRevokeMr,
        qp::GlobalRoute,
        qp::AhAttr,
        qp::QpCap,
        qp::QpAttr,
        ctrl::CmdCreateQp,
        ctrl::RspCreateQp,
        ctrl::CmdCreateQpRings,
        ctrl::CmdModifyQp,
        ctrl::CmdQueryQp,
        ctrl::RspQueryQp,
        ctrl::CmdDestroyQp,
        ctrl::CmdSetRateLimit,
        ctrl::CmdAttachMcast,
        ctrl::CmdDetachMcast,
        ctrl::CmdCreateSrq,
        ctrl::RspCreateSrq,
        ctrl::CmdModifySrq,
        ctrl::CmdQuerySrq,
        ctrl::RspQuerySrq,
        ctrl::CmdDestroySrq,
        wqe::Sge,
        wqe::SqHeader,
        wqe::Rdma,
        wqe::Atomic,
        wqe::AddressVector,
        wqe::Datagram,
        wqe::Reg,
        wqe::RegPages,
        wqe::BindMw,
        wqe::AtomicWrite,
        wqe::Flush,
        wqe::RqHeader,
        cqe::Cqe,
        versions::Versions,
        uverbs::AllocContextReq,
        uverbs::AllocContextResp,
        uverbs::UserRing,
        uverbs::RingMapping,
        uverbs::CreateCqReq,
        uverbs::CreateCqResp,
        uverbs::ResizeCqReq,
        uverbs::ResizeCqResp,
        uverbs::CreateQpReq,
        uverbs::CreateQpResp,
        uverbs::CreateSrqReq,
        uverbs::CreateSrqResp,
        uverbs::ModifySrqReq,
        uverbs::ModifyQpReq,
        uverbs::CreateAhResp,
    );
    enumerations!(
        numbers,
        names,
        ib::PortState,
        ib::PortPhysState,
        ib::Mtu,
        ib::PortSpeed,
        ib::PortWidth,
        ib::MwType,
        ib::QpType,
        ib::SigType,
        ib::QpState,
        ib::MigState,
        ib::GidType,
        ib::WrOpcode,
        ib::FlushLevel,
        ib::WcStatus,
        cqe::WcReason,
        ib::AsyncEvent,
        config::AtomicCap,
        feature::Feature,
        ring::ArmKind,
        ring::DoorbellKind,
        ctrl::Command,
        ctrl::Errno,
        ctrl::PageListDepth,
    );
    masks!(
        numbers,
        names,
        ib::PortCaps,
        ib::AccessFlags,
        ib::AhFlags,
        ib::QpAttrMask,
        ib::FlushTypes,
        ib::SendFlags,
        ib::WcFlags,
        config::DeviceCaps,
        config::QpTypes,
        ctrl::NotifyFlags,
        ctrl::ReregFlags,
        ctrl::CreateFlags,
        ctrl::SrqAttrMask,
        uverbs::ContextFlags,
        uverbs::ContextAttributes,
    );
    constants!(
        numbers,
        names,
        ib::MASK_24,
        ib::PORT,
        ib::NO_VLAN,
        ib::MAX_VLAN,
        ib::GRH_SIZE,
        ib::MAX_SL,
        ib::DEFAULT_PKEY,
        config::CONFIG_SIZE,
        config::OWN_RINGS_CONFIG_OFFSET,
        config::SRQ_CONFIG_OFFSET,
        config::RATE_LIMIT_CONFIG_OFFSET,
        config::CQ_MODERATION_CONFIG_OFFSET,
        config::COUNTER_SET_CONFIG_OFFSET,
        config::DOORBELL_SHM_ID,
        ring::CACHE_LINE,
        ring::KERNEL_DOORBELL_PAGE,
        event::FIRST_EVENT_QUEUE,
        event::KIND_COMPLETION,
        event::KIND_ASYNC,
        ctrl::CONTROL_QUEUE,
        ctrl::RESPONSE_OK,
        ctrl::MAX_REQUEST,
        ctrl::MAX_RESPONSE,
        ctrl::PAGE_LIST_BLOCK,
        wqe::INLINE_OFFSET,
        cqe::OPCODE_RECV,
        cqe::OPCODE_RECV_RDMA_WITH_IMM,
        cqe::CQ_SLOT_SHIFT,
        versions::UNSTATED,
        uverbs::PEER_NAME_SIZE,
    );
    for (name, qpn) in [
        ("GSI_QPN", ib::GSI_QPN),
        ("MULTICAST_QPN", ib::MULTICAST_QPN),
    ] {
        numbers.insert(format!("VIRTIO_RDMA_{name}"), qpn.get().into());
        names.insert(name.into());
    }
    ranges!(
        numbers,
        names,
        config::QUEUE_COUNT_RANGE,
        ring::WORK_SLOTS,
        ring::CQ_SLOTS,
        ring::SLOT_SHIFT_RANGE,
        ring::PAGE_SHIFT_RANGE,
        ring::DOORBELL_SHIFT_RANGE,
    );
    (numbers, names)
}

/// The names of types and constants that the Rust sources declare.
fn declared(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("tests") {
            declared(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            for line in text.lines() {
                // Types are declared inside a macro call, so their lines are indented.
                let of_type = ["    pub struct ", "    pub enum "]
                    .iter()
                    .find_map(|head| line.strip_prefix(head));
                let of_constant = line.strip_prefix("pub const ");
                let Some((name, rest)) = of_type.or(of_constant).and_then(|l| l.split_once(':'))
                else {
                    continue;
                };
                if rest.starts_with(' ') && !name.contains(['$', '(', '<']) {
                    names.insert(name.to_owned());
                }
            }
        }
    }
}

/// The numbers that a C compiler computes for each structure, member and constant of a header.
fn of_c(include: &Path, header: &str) -> Numbers {
    let text = fs::read_to_string(include.join(header)).expect("a header");
    let mut program = format!("#include <stddef.h>\n#include <stdio.h>\n#include <{header}>\n");
    program.push_str("int main(void)\n{\n");
    let mut print = |name: &str, value: &str| {
        program.push_str(&format!(
            "printf(\"%s=%llu\\n\", \"{name}\", (unsigned long long)({value}));\n"
        ));
    };
    let mut structure = None;
    for line in text.lines() {
        if let Some(name) = line
            .strip_prefix("struct ")
            .and_then(|l| l.strip_suffix(" {"))
        {
            print(name, &format!("sizeof(struct {name})"));
            structure = Some(name);
        } else if line.starts_with('}') {
            structure = None;
        } else if let Some(define) = line.strip_prefix("#define VIRTIO_RDMA_") {
            let name = define.split(' ').next().unwrap_or_default();
            print(
                &format!("VIRTIO_RDMA_{name}"),
                &format!("VIRTIO_RDMA_{name}"),
            );
        } else if let Some(structure) = structure {
            let member = line.trim_end_matches(';').rsplit(' ').next();
            let member = member.unwrap_or_default().split('[').next();
            let member = member.unwrap_or_default();
            print(
                &format!("{structure}.{member} at"),
                &format!("offsetof(struct {structure}, {member})"),
            );
            print(
                &format!("{structure}.{member}"),
                &format!("sizeof(((struct {structure} *)0)->{member})"),
            );
        }
    }
    program.push_str("return 0;\n}\n");

    let name = header.replace(['/', '.'], "-");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&source, program).expect("room for a program");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include)
        .args([&source, Path::new("-o"), &binary])
        .status()
        .expect("a C compiler");
    assert!(compiled.success(), "{header}");
    let output = Command::new(&binary).output().expect("the program runs");
    String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .map(|line| {
            let (name, number) = line.split_once('=').expect("a name and a number");
            (name.to_owned(), number.parse().expect("a number"))
        })
        .collect()
}

/// Asserts that both maps are equal, and reports the differences by name.
fn compare(rust: &Numbers, c: &Numbers) {
    let names: BTreeSet<&String> = rust.keys().chain(c.keys()).collect();
    let differences: Vec<String> = names
        .into_iter()
        .filter(|name| rust.get(*name) != c.get(*name))
        .map(|name| format!("{name}: Rust {:?}, C {:?}", rust.get(name), c.get(name)))
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Compares offset and size of each member, size of each structure and value of each constant.
#[test]
fn headers_are_what_rust_says() {
    let abi = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (rust, names) = of_rust();
    let mut sources = BTreeSet::new();
    declared(abi, &mut sources);
    assert_eq!(
        sources.difference(&names).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "missing in the lists above"
    );
    let include = abi.join("../../../include/uapi");
    let mut c = of_c(&include, "linux/virtio_rdma.h");
    c.extend(of_c(&include, "rdma/virtio_rdma-abi.h"));
    compare(&rust, &c);
}
