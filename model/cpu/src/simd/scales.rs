//! Scales of blocks as an array.

/// [`Vector::Scales`](super::vector::Vector::Scales) as an array, for vectors without a faster
/// form.
macro_rules! scales_in_an_array {
    () => {
        type Scales = [f32; 8];

        #[inline(always)]
        unsafe fn scales(p: *const u8, step: usize) -> [f32; 8] {
            // SAFETY: the caller guarantees eight f16 numbers.
            std::array::from_fn(|i| unsafe {
                Self::half(u16::from_le_bytes(p.add(i * step).cast::<[u8; 2]>().read()))
            })
        }

        #[inline(always)]
        unsafe fn scales_of(bytes: u64, by: f32) -> [f32; 8] {
            bytes.to_le_bytes().map(|b| by * f32::from(b))
        }

        #[inline(always)]
        unsafe fn scaled(scales: [f32; 8], by: *const f32) -> [f32; 8] {
            // SAFETY: the caller guarantees eight floats.
            let by = unsafe { by.cast::<[f32; 8]>().read() };
            std::array::from_fn(|i| scales[i] * by[i])
        }

        #[inline(always)]
        unsafe fn add_scaled(self, scales: [f32; 8], by: *const f32) -> Self {
            // SAFETY: the caller guarantees eight floats; `products` has 32 lanes.
            unsafe {
                let mut products = [0.0; $crate::simd::LANES];
                products[..8].copy_from_slice(&Self::scaled(scales, by));
                self.add(Self::load(products.as_ptr()))
            }
        }

        #[inline(always)]
        unsafe fn add_chunk<const C: usize>(
            self,
            codes: Self::Codes,
            bias: u8,
            q: *const u8,
            scales: [f32; 8],
        ) -> Self {
            let (a, b) = (scales[2 * C], scales[2 * C + 1]);
            // SAFETY: this function's safety contract, which the caller upholds, covers the call.
            unsafe { self.add_dot(codes, bias, q, [a, a, b, b]) }
        }
    };
}

pub(super) use scales_in_an_array;
