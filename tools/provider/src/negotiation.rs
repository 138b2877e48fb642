// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Negotiation of the interface version with the kernel module.
//!
//! libibverbs reads the oldest version that the module supports from sysfs. The request for a
//! context contains the provider's range of versions. A module of version 6 knows no ranges and
//! refuses such a request, so the provider then sends a request without a range.

use std::fmt;

use virtio_rdma_abi::uverbs::AllocContextReq;
use virtio_rdma_abi::uverbs::AllocContextResp;
use virtio_rdma_abi::versions::Versions;
use virtio_rdma_abi::versions::UNSTATED;
use virtio_rdma_abi::wire::Wire;

/// Versions that this provider supports. Tests set the variable at build time, for providers that
/// are older or newer than the module.
pub const SPOKEN: Versions = match option_env!("VIRTIO_RDMA_TEST_VERSIONS") {
    Some(range) => range_of(range),
    None => Versions::SPOKEN,
};

/// The range in a text such as "8-9": two numbers of one digit.
const fn range_of(text: &str) -> Versions {
    match *text.as_bytes() {
        [oldest @ b'0'..=b'9', b'-', newest @ b'0'..=b'9'] => Versions {
            oldest: (oldest - b'0') as u32,
            newest: (newest - b'0') as u32,
        },
        _ => panic!("VIRTIO_RDMA_TEST_VERSIONS has to be a range like 8-9"),
    }
}

/// Reason why the module has opened no context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The module has answered with this error.
    Error(i32),
    /// The module has chosen a version that was not offered.
    NotOffered {
        /// The chosen version.
        version: u32,
    },
    /// The provider's versions are older than all of the module's.
    OldProvider {
        provider: Versions,
        /// Oldest version of the module.
        module: u32,
    },
    /// The module's versions are older than all of the provider's.
    OldModule {
        provider: Versions,
        /// Oldest version of the module.
        module: u32,
    },
}

impl Refusal {
    /// The error number for the program.
    pub fn number(&self) -> i32 {
        match self {
            Self::Error(number) => *number,
            Self::NotOffered { .. } => libc::EPROTO,
            Self::OldProvider { .. } | Self::OldModule { .. } => libc::EPROTONOSUPPORT,
        }
    }

    /// Whether the user needs a message besides the error number.
    pub fn needs_words(&self) -> bool {
        !matches!(self, Self::Error(_))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(number) => write!(f, "error {number}"),
            Self::NotOffered { version } => write!(
                f,
                "the kernel module has chosen interface version {version}, \
                 which this provider does not speak"
            ),
            Self::OldProvider {
                provider: Versions { oldest, newest },
                module,
            } => write!(
                f,
                "this provider is older than the kernel module: \
                 it speaks interface versions {oldest} to {newest}, \
                 the module {module} and newer ones: update the provider (libvirtio_rdma)"
            ),
            Self::OldModule {
                provider: Versions { oldest, newest },
                module,
            } => write!(
                f,
                "the kernel module is older than this provider: \
                 it speaks interface version {module}, but none of {oldest} to {newest}: \
                 update the kernel module (virtio_rdma)"
            ),
        }
    }
}

/// Requests a context with `request`, in a version that the provider and the module share.
/// `provider` is the provider's range, `module` the module's oldest version. `ask` sends a request
/// and returns the response or the error number.
///
/// # Errors
///
/// [`Refusal`].
pub fn negotiate(
    provider: Versions,
    module: u32,
    request: AllocContextReq,
    mut ask: impl FnMut(&AllocContextReq) -> Result<AllocContextResp, i32>,
) -> Result<AllocContextResp, Refusal> {
    let old_module = Refusal::OldModule { provider, module };
    if module > provider.newest {
        return Err(Refusal::OldProvider { provider, module });
    }
    // A module before version 6 supports its own version only, and has other structures.
    if module < UNSTATED {
        return Err(old_module);
    }
    let stating = AllocContextReq {
        versions: provider,
        ..request
    };
    match ask(&stating) {
        Ok(response) if provider.contains(response.version) => Ok(response),
        Ok(response) => Err(Refusal::NotOffered {
            version: response.version,
        }),
        Err(libc::ENOPROTOOPT) => Err(old_module),
        Err(libc::EOPNOTSUPP) if module == UNSTATED => {
            let unstated = AllocContextReq {
                versions: Versions::ZERO,
                ..request
            };
            match provider.contains(UNSTATED) {
                true => ask(&unstated).map_err(Refusal::Error),
                // The module may have refused another field of the request.
                false if request == AllocContextReq::default() => Err(old_module),
                false => Err(Refusal::Error(libc::EOPNOTSUPP)),
            }
        }
        Err(number) => Err(Refusal::Error(number)),
    }
}
