// held.h: wgmma products of four warps for every width of token batches. A is in registers; B is a
// tile of rows of 64 f16 (tile_descriptor in hopper.h).
#pragma once
#include "hopper.h"

#define HELD_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HELD_D12 D8(0), HELD_D4(8)
#define HELD_D20 D16(0), HELD_D4(16)
#define HELD_D24 D16(0), D8(16)
#define HELD_D28 D16(0), HELD_D12_AT_16
#define HELD_D12_AT_16 D8(16), HELD_D4(24)
#define HELD_D80 D64(0), D16(64)
#define HELD_D96 D64(0), D32(64)
#define HELD_D112 HELD_D96, D16(96)
// Names of the first N operands, for numbers that hopper.h does not define.
#define HELD_R4 "%0,%1,%2,%3"
#define HELD_R12 R8 ",%8,%9,%10,%11"
#define HELD_R20 R16 ",%16,%17,%18,%19"
#define HELD_R24 HELD_R20 ",%20,%21,%22,%23"
#define HELD_R28 HELD_R24 ",%24,%25,%26,%27"
#define HELD_R80 \
    R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define HELD_R96 \
    HELD_R80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define HELD_R112 \
    HELD_R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define HELD(n, names, results, A0, A1, A2, A3, B, KEEP) \
    asm volatile(PRODUCT_IF_KEPT(n, names, KEEP) \
                 "{%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, 0; }" \
                 : results : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

// d[64 × N] = (keep ? d : 0) + A[64 × 16] · B[N × 16]ᵀ. Results and A have the layout of hopper.h's
// products and products_held. N: multiples of 8 up to 64, of 32 up to 256.
template <u32 N> STEP void held_products(float (&d)[N / 2], const u32 (&a)[4], u64 b, u32 keep) {
    static_assert(N <= 64 ? N % 8 == 0 : N % 32 == 0 && N <= 256, "a width that is spelled out");
    if constexpr (N == 8) HELD(8, HELD_R4, HELD_D4(0), 4, 5, 6, 7, 8, 9);
    else if constexpr (N == 16) HELD(16, R8, D8(0), 8, 9, 10, 11, 12, 13);
    else if constexpr (N == 24) HELD(24, HELD_R12, HELD_D12, 12, 13, 14, 15, 16, 17);
    else if constexpr (N == 32) HELD(32, R16, D16(0), 16, 17, 18, 19, 20, 21);
    else if constexpr (N == 40) HELD(40, HELD_R20, HELD_D20, 20, 21, 22, 23, 24, 25);
    else if constexpr (N == 48) HELD(48, HELD_R24, HELD_D24, 24, 25, 26, 27, 28, 29);
    else if constexpr (N == 56) HELD(56, HELD_R28, HELD_D28, 28, 29, 30, 31, 32, 33);
    else if constexpr (N == 64) HELD(64, R32, D32(0), 32, 33, 34, 35, 36, 37);
    else if constexpr (N == 96) HELD(96, R48, D48, 48, 49, 50, 51, 52, 53);
    else if constexpr (N == 128) HELD(128, R64, D64(0), 64, 65, 66, 67, 68, 69);
    else if constexpr (N == 160) HELD(160, HELD_R80, HELD_D80, 80, 81, 82, 83, 84, 85);
    else if constexpr (N == 192) HELD(192, HELD_R96, HELD_D96, 96, 97, 98, 99, 100, 101);
    else if constexpr (N == 224) HELD(224, HELD_R112, HELD_D112, 112, 113, 114, 115, 116, 117);
    else HELD(256, R128, D128, 128, 129, 130, 131, 132, 133);
}
