// SPDX-License-Identifier: GPL-2.0

//! Tables of device ids that one macro defines and exports.

pub use stock::device_id::*;

/// Defines the table `$name` of ids without data, and exports it to modpost.
#[macro_export]
macro_rules! module_device_table {
    ($bus:literal, $id:ty, $name:ident, @none, [$($ids:expr),* $(,)?]) => {
        const $name: $crate::device_id::IdArray<
            $id,
            (),
            { <[$id]>::len(&[$($ids,)*]) },
        > = $crate::device_id::IdArray::new_without_index([$(($ids, ()),)*]);

        const _: () = {
            #[export_name = concat!(
                "__mod_device_table__", ::core::line!(),
                "__kmod_", module_path!(),
                "__", $bus,
                "__", stringify!($name),
            )]
            static EXPORTED: [::core::mem::MaybeUninit<u8>; $name.raw_ids().size()] =
                // SAFETY: The source and the array of bytes have the same size.
                unsafe { ::core::mem::transmute_copy($name.raw_ids()) };
        };
    };
}
