// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Address handles.

use anyhow::{ensure, Result};

use crate::rdma::{Ah, AhAttr, Pd};
use crate::session::{errno, refused, Session};

const EINVAL: i32 = 22;
const ENODATA: i32 = 61;

/// A change of the attributes of an AH.
type Edit = fn(&mut AhAttr);

/// AHs to the peer are created and destroyed. Invalid attributes are refused.
pub fn address(session: &mut Session) -> Result<()> {
    let index = session.settings.gid_index;
    let gid = session.swap_gid()?;
    let good = |attr: &mut AhAttr| {
        attr.port_num = 1;
        attr.is_global = 1;
        attr.grh.dgid.raw = gid;
        attr.grh.sgid_index = index;
        attr.grh.hop_limit = 64;
        attr.grh.traffic_class = 0x68;
        attr.grh.flow_label = 0x000a_bcde;
        attr.sl = 3;
    };
    let pd = Pd::new(&session.context)?;
    for _ in 0..2 {
        let ahs: Result<Vec<Ah>> = (0..100).map(|_| Ah::new(&pd, good)).collect();
        drop(ahs?);
    }
    let bad: [(&str, Edit); 4] = [
        ("port 0", |attr| attr.port_num = 0),
        ("port 2", |attr| attr.port_num = 2),
        ("no global route", |attr| attr.is_global = 0),
        ("an index without a GID", |attr| attr.grh.sgid_index = 255),
    ];
    for (what, spoil) in bad {
        let result = Ah::new(&pd, |attr| {
            good(attr);
            spoil(attr);
        });
        let error = refused(what, result)?;
        // The error depends on the length of the GID table: ENODATA for an empty entry, EINVAL for
        // an index past the table.
        ensure!(
            matches!(errno(&error), Some(EINVAL | ENODATA)),
            "{what}: {error:#}"
        );
    }
    // Refused AHs do not keep PD and GID in use.
    Ah::new(&pd, good)?;
    session.peer.meet()
}
