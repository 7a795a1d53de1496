/* A multilayer perceptron in C: tensors in by DLPack, operations, the result by DLPack.
 *
 *   cc mlp.c -I.. -L../../target/debug -lkjit_c -lm -o mlp && ./mlp [DEVICE]
 */
#include "kjit_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void ok(KjitStatus status) {
  if (status != KJIT_OK) {
    fprintf(stderr, "error %d: %s\n", (int)status, kjit_last_error());
    exit(1);
  }
}

/* A matrix of floats in memory of this program, copied. */
static KjitTensor *matrix(float *values, int64_t rows, int64_t columns) {
  int64_t shape[2] = {rows, columns};
  DLTensor given = {0};
  given.data = values;
  given.device.device_type = 1; /* kDLCPU */
  given.ndim = 2;
  given.dtype.code = 2; /* kDLFloat */
  given.dtype.bits = 32;
  given.dtype.lanes = 1;
  given.shape = shape;
  KjitTensor *out = NULL;
  ok(kjit_from_dltensor(&given, &out));
  return out;
}

int main(int count, char **words) {
  enum { N = 5, IN = 31, HIDDEN = 17, OUT = 3 };
  static float x[N][IN], w1[HIDDEN][IN], w2[OUT][HIDDEN];
  unsigned seed = 1;
  float *all[] = {x[0], w1[0], w2[0]};
  int sizes[] = {N * IN, HIDDEN * IN, OUT * HIDDEN};
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < sizes[i]; j++) {
      seed = seed * 1103515245u + 12345u;
      all[i][j] = (float)(seed >> 16 & 1023) / 512 - 1;
    }

  const char *device = count > 1 ? words[1] : "cpu";
  KjitTensor *tx = matrix(x[0], N, IN), *t1 = matrix(w1[0], HIDDEN, IN);
  KjitTensor *t2 = matrix(w2[0], OUT, HIDDEN), *dx, *d1, *d2, *h, *a, *y, *p, *back;
  ok(kjit_to_device(tx, device, &dx));
  ok(kjit_to_device(t1, device, &d1));
  ok(kjit_to_device(t2, device, &d2));
  ok(kjit_linear(dx, d1, NULL, &h));
  ok(kjit_unary("relu", h, &a));
  ok(kjit_linear(a, d2, NULL, &y));
  ok(kjit_softmax(y, 1, false, &p));
  ok(kjit_to_device(p, "cpu", &back));

  DLManagedTensorVersioned *shown = NULL;
  ok(kjit_to_dlpack(back, &shown));
  const float *got = (const float *)((char *)shown->dl_tensor.data + shown->dl_tensor.byte_offset);
  double worst = 0;
  for (int i = 0; i < N; i++) {
    double scores[OUT], sum = 0;
    for (int o = 0; o < OUT; o++) {
      scores[o] = 0;
      for (int k = 0; k < HIDDEN; k++) {
        double unit = 0;
        for (int j = 0; j < IN; j++) unit += (double)x[i][j] * w1[k][j];
        if (unit > 0) scores[o] += unit * w2[o][k];
      }
      sum += exp(scores[o]);
    }
    for (int o = 0; o < OUT; o++) {
      double error = fabs(got[i * OUT + o] - exp(scores[o]) / sum);
      if (!(error <= worst)) worst = error;
    }
  }
  printf("%d rows on %s, largest error %.1e\n", N, device, worst);
  shown->deleter(shown);

  /* What does not fit is told in one line. */
  KjitTensor *none = NULL;
  if (kjit_matmul(tx, t1, &none) != KJIT_SHAPE || none != NULL) return 2;
  printf("told: %s\n", kjit_last_error());

  KjitTensor *tensors[] = {tx, t1, t2, dx, d1, d2, h, a, y, p, back};
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) kjit_free(tensors[i]);
  return worst < 1e-5 ? 0 : 1;
}
