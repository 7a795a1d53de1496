// A kernel that is compiled but never run. It tests whether a compiler for gfx908 copies
// accumulation registers correctly (src/agpr_copy_check.rs). Sums live across iterations and are
// scaled in vector registers, and the last iteration differs from the others: there a compiler
// copies the sums to other accumulation registers.
typedef float sums __attribute__((ext_vector_type(4)));
typedef _Float16 halves __attribute__((ext_vector_type(4)));
__attribute__((shared)) static float copies_lds[1024];
extern "C" __attribute__((global)) void copies(sums* y, int n, const float* s) {
    sums out[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    int t = __builtin_amdgcn_workitem_id_x();
    for (int i = 0; i < n; i += 32) {
        halves a = *(halves*)(copies_lds + t * 2);
        for (int j = 0; j < 2; j++)
            for (int e = 0; e < 4; e++) out[j][e] *= copies_lds[i + e];
        _Pragma("nounroll") for (int d = 0; d < 4; d++)
            for (int j = 0; j < 2; j++) {
                halves b = *(halves*)(copies_lds + j * 4 + d + i + t);
                out[j] = __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, out[j], 0, 0, 0);
            }
        if (i + 32 < n) copies_lds[t + i] = s[i + t];
    }
    for (int j = 0; j < 2; j++) y[j * 64 + t] = out[j];
}
