/* An nvrtc that does what the source says. `fake: HOW` in the source is abort, kill, loop, eat,
 * print, refuse, garbage, nothing or huge. `entry: NAME` names the kernel of the cubin, whose code
 * is the source's hash. VERSION is the minor version. fake_nvrtc.rs builds it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct { char *text, log[256], how[16], code[4096]; size_t size; } Program;

int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = VERSION, 0; }
int nvrtcGetNumSupportedArchs(int *count) { return *count = 2, 0; }
int nvrtcGetSupportedArchs(int *archs) { return archs[0] = 80, archs[1] = 90, 0; }
const char *nvrtcGetErrorString(int code) { return code == 6 ? "NVRTC_ERROR_COMPILATION" : "as the test wants it"; }

int nvrtcCreateProgram(Program **to, const char *text, const char *name, int count, const char **headers, const char **names) {
    Program *p = calloc(1, sizeof *p);
    p->text = strdup(text);
    return *to = p, 0;
}
int nvrtcDestroyProgram(Program **p) { return free((*p)->text), free(*p), *p = 0, 0; }

static void put(char **at, unsigned long value, int bytes) { memcpy(*at, &value, bytes), *at += bytes; }

/* The smallest cubin: an ELF file for machine 190 with `.nv.info.NAME` and `.text.NAME`. */
static size_t cubin(char *to, const char *name, const char *text) {
    char titles[512], *at = to;
    unsigned long hash = 1469598103934665603ul;
    for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211ul;
    int end = 1 + sprintf(titles + 1, ".nv.info.%s", name) + 1, code = end;
    titles[0] = 0;
    end += sprintf(titles + end, ".text.%s", name) + 1;
    int own = end;
    end += sprintf(titles + end, ".shstrtab") + 1;
    memcpy(at, "\x7f" "ELF\2\1\1\x33\7\0\0\0\0\0\0\0", 16), at += 16;
    put(&at, 2, 2), put(&at, 190, 2), put(&at, 1, 4), put(&at, 0, 8), put(&at, 0, 8), put(&at, 64, 8), put(&at, 0, 4);
    put(&at, 64, 2), put(&at, 56, 2), put(&at, 0, 2), put(&at, 64, 2), put(&at, 4, 2), put(&at, 3, 2);
    long data = 64 + 4 * 64;
    /* name, kind, flags, address, offset, size, link, info, alignment, size of an entry */
    long sections[4][4] = {{0, 0, 0, 0}, {1, 0x70000000, data, 0}, {code, 1, data, 16}, {own, 3, data + 16, end}};
    for (int i = 0; i < 4; i++) {
        put(&at, sections[i][0], 4), put(&at, sections[i][1], 4), put(&at, 0, 8), put(&at, 0, 8), put(&at, sections[i][2], 8);
        put(&at, sections[i][3], 8), put(&at, 0, 4), put(&at, 0, 4), put(&at, 1, 8), put(&at, 0, 8);
    }
    put(&at, hash, 8), put(&at, VERSION, 8);
    memcpy(at, titles, end);
    return at + end - to;
}

int nvrtcCompileProgram(Program *p, int count, const char **options) {
    char name[64] = "kernel", once[256] = "";
    const char *how = strstr(p->text, "fake: "), *entry = strstr(p->text, "entry: "), *first = strstr(p->text, "once: ");
    if (entry) sscanf(entry, "entry: %63s", name);
    if (first) sscanf(first, "once: %255s", once);
    /* With `once: FOLDER` it fails only if it could create that folder. */
    if (how && (!*once || mkdir(once, 0700) == 0)) sscanf(how, "fake: %15s", p->how);
    how = p->how;
    if (!strcmp(how, "print")) printf("this is no answer\n"), fflush(stdout);
    if (!strcmp(how, "abort")) fprintf(stderr, "nvrtc: as the test wants it\n"), abort();
    if (!strcmp(how, "kill")) raise(SIGKILL);
    if (!strcmp(how, "loop")) for (volatile int i = 0;; i = i + 1) {}
    if (!strcmp(how, "eat")) for (;;) memset(malloc(1 << 20), 1, 1 << 20);
    if (!strcmp(how, "refuse")) return strcpy(p->log, "k.hip(3): error: refused, as the test wants it\n"), 6;
    if (!strcmp(how, "option")) return 5;
    p->size = cubin(p->code, name, p->text);
    if (!strcmp(how, "garbage")) p->size = sprintf(p->code, "no cubin");
    if (!strcmp(how, "nothing")) p->size = 0;
    return 0;
}
int nvrtcGetProgramLogSize(Program *p, size_t *size) { return *size = strlen(p->log) + 1, 0; }
int nvrtcGetProgramLog(Program *p, char *to) { return strcpy(to, p->log), 0; }
int nvrtcGetCUBINSize(Program *p, size_t *size) { return *size = strcmp(p->how, "huge") ? p->size : (size_t)1 << 60, 0; }
int nvrtcGetCUBIN(Program *p, char *to) { return memcpy(to, p->code, p->size), 0; }
