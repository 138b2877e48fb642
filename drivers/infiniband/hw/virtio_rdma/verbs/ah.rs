// SPDX-License-Identifier: GPL-2.0

//! Address handles.
//!
//! The device knows no AHs: each work request of a UD QP carries an address vector, which the AH
//! holds. So creating or destroying an AH needs no command and never sleeps.

use super::{
    device::IbDevice,
    port::check_port,
    resource_limit::Charge, //
};
use crate::{
    abi::{
        number::Pdn,
        uverbs::CreateAhResp,
        wqe::AddressVector, //
    },
    rdma::{
        self,
        ah::{
            AddressHandles,
            AhInitAttr, //
        },
        gid::GidType,
        pd::Pd,
        qp_attr::AhAttr,
        Udata, //
    }, //
};
use kernel::prelude::*;

pub(crate) struct Ah {
    av: AddressVector,
    _charge: Charge,
}

impl Ah {
    /// The address vector that each work request carries.
    #[inline]
    pub(super) fn av(&self) -> &AddressVector {
        &self.av
    }
}

/// The address vector of a path.
///
/// # Errors
///
/// `EINVAL` if the device has no such port or source GID, or the service level or flow label is out
/// of range.
fn encode(pdn: Pdn, init: &AhInitAttr<'_>) -> Result<AddressVector> {
    let (attr, source) = (init.attr(), init.source());
    if source.port() != attr.port_num || source.gid_type()? != GidType::RoceV2 {
        return Err(EINVAL);
    }
    Ok(AddressVector {
        port: check_port(attr.port_num)?.into(),
        pdn,
        sl_tclass_flowlabel: AddressVector::pack(attr.sl, attr.traffic_class, attr.flow_label)
            .ok_or(EINVAL)?,
        dgid: attr.dgid,
        gid_index: u8::try_from(source.index())?,
        static_rate: attr.static_rate,
        hop_limit: attr.hop_limit,
        dmac: attr.dmac,
        ..AddressVector::default()
    })
}

/// The path of an address vector.
fn decode(av: &AddressVector) -> AhAttr {
    AhAttr {
        dgid: av.dgid,
        flow_label: av.flow_label(),
        sgid_index: av.gid_index,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class(),
        sl: av.sl(),
        static_rate: av.static_rate,
        port_num: av.port,
        dmac: av.dmac,
    }
}

impl AddressHandles for IbDevice {
    type Ah = Ah;

    fn create_ah(pd: &Pd<Self>, init: &AhInitAttr<'_>) -> Result<Ah> {
        Ok(Ah {
            av: encode(pd.number(), init)?,
            _charge: pd.device().ahs.charge(1)?,
        })
    }

    fn create_user_ah(pd: &Pd<Self>, init: &AhInitAttr<'_>, udata: &Udata<'_>) -> Result<Ah> {
        udata.no_request()?;
        let ah = Self::create_ah(pd, init)?;
        let response = CreateAhResp {
            av: ah.av,
            ..CreateAhResp::default()
        };
        udata.respond(&response)?;
        Ok(ah)
    }

    fn query_ah(ah: &rdma::ah::Ah<Self>) -> AhAttr {
        decode(&ah.av)
    }
}
