// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of the connection manager (IBTA 12.6), which are MADs (IBTA 13.4).

use crate::word::worded;

/// The first bytes of a MAD, which tell what it is.
pub type MadStart = [u8; 18];

/// Offset of the management class, one byte.
const CLASS: usize = 1;
/// Offset of the attribute ID, a big-endian number of 16 bits.
const ATTRIBUTE: usize = 16;
/// The management class of the connection manager.
const CM_CLASS: u8 = 7;

worded! {
    /// A message of the connection manager. The number is its attribute ID.
    pub(crate) enum CmMessage {
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
}

/// The attribute ID of a message of the connection manager; `None` for other MADs.
pub fn attribute(mad: &MadStart) -> Option<u16> {
    let attribute = [mad[ATTRIBUTE], mad[ATTRIBUTE + 1]];
    (mad[CLASS] == CM_CLASS).then_some(u16::from_be_bytes(attribute))
}
