// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of the connection manager (IBTA 12.6), which are MADs (IBTA 13.4).

use crate::rule::Word;

/// The first bytes of a MAD, which tell what it is.
pub type MadStart = [u8; 18];

/// Offset of the management class, one byte.
const CLASS: usize = 1;
/// Offset of the attribute ID, a big-endian number of 16 bits.
const ATTRIBUTE: usize = 16;
/// The management class of the connection manager.
const CM_CLASS: u8 = 7;

macro_rules! messages {
    ($($(#[$doc:meta])* $message:ident = $word:literal, $attribute:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum CmMessage {
            $($(#[$doc])* $message = $attribute,)*
        }

        impl Word for CmMessage {
            const ALL: &'static [Self] = &[$(Self::$message),*];

            fn word(self) -> &'static str {
                match self {
                    $(Self::$message => $word,)*
                }
            }
        }
    };
}

messages! {
    Req = "REQ", 0x10;
    Mra = "MRA", 0x11;
    Rej = "REJ", 0x12;
    Rep = "REP", 0x13;
    Rtu = "RTU", 0x14;
    Dreq = "DREQ", 0x15;
    Drep = "DREP", 0x16;
    SidrReq = "SIDR_REQ", 0x17;
    SidrRep = "SIDR_REP", 0x18;
}

impl CmMessage {
    /// The attribute ID.
    pub(crate) const fn value(self) -> u16 {
        self as u16
    }
}

/// The attribute ID of a message of the connection manager; `None` for other MADs.
pub fn attribute(mad: &MadStart) -> Option<u16> {
    let attribute = [mad[ATTRIBUTE], mad[ATTRIBUTE + 1]];
    (mad[CLASS] == CM_CLASS).then_some(u16::from_be_bytes(attribute))
}
