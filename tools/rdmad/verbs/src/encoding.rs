// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Serialization of values that have none of their own, for saved state.

/// Serialization of structures of the ABI as their bytes, for `serde(with)`.
pub(crate) mod wire {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use virtio_rdma_abi::wire::Wire;

    pub(crate) fn serialize<T: Wire, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut bytes = vec![0; T::SIZE];
        value.put(&mut bytes);
        bytes.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: Wire, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let bytes = Vec::deserialize(deserializer)?;
        if bytes.len() != T::SIZE {
            return Err(D::Error::invalid_length(bytes.len(), &"another length"));
        }
        Ok(T::get(&bytes))
    }
}

/// Serialization of numbers of objects, for `serde(with)`.
pub(crate) mod number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use virtio_rdma_abi::number::Number;

    pub(crate) fn serialize<N: Number, S: Serializer>(
        number: &N,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        number.get().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, N: Number, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<N, D::Error> {
        u32::deserialize(deserializer).map(N::new)
    }
}

/// Serialization of an array of bytes without the zeros at its end, for `serde(with)`. People see
/// hexadecimal digits.
pub(crate) mod bytes {
    use std::fmt::Write;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<const N: usize, S: Serializer>(
        bytes: &[u8; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let used = bytes.iter().rposition(|byte| *byte != 0);
        let bytes = &bytes[..used.map_or(0, |last| last + 1)];
        if !serializer.is_human_readable() {
            return bytes.serialize(serializer);
        }
        let mut digits = String::new();
        for byte in bytes {
            // Writing to a string can't fail.
            let _ = write!(digits, "{byte:02x}");
        }
        digits.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, const N: usize, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[u8; N], D::Error> {
        let used: Vec<u8> = Vec::deserialize(deserializer)?;
        let mut bytes = [0; N];
        let room = bytes.get_mut(..used.len());
        let long = || D::Error::invalid_length(used.len(), &"fewer bytes");
        room.ok_or_else(long)?.copy_from_slice(&used);
        Ok(bytes)
    }
}
