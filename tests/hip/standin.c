/* A stand-in for libamdhip64, for tests: the calls that Penstock makes, and an adversary in them.
 *
 * Every stream is a thread that does one thing after the other, as late as it may: an operation is
 * begun only when somebody asks for an event behind it, or after a while of its own choosing.
 * Asynchronous copies touch host memory only then, and copies of memory that is not pinned block.
 * Memory begins as garbage and ends as poison; whoever uses or frees it afterwards, or frees it while
 * an operation that uses it is still to come, is reported. Every call is logged, and any may be made
 * to fail. Kernels are compiled for the host (standin.h) and run in the thread of the stream.
 *
 * `standin_*` is how tests talk to it. It calls itself what it is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NO_BINARY = 209, BAD_HANDLE = 400,
       NOT_FOUND = 500, NOT_READY = 600, ALREADY_REGISTERED = 712, LAUNCH_FAILURE = 719 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* What tests set. */

static int device_count = 1, integrated = 0, lost = 0;
static int drift_ppm = 0; /* by how much the device's clock runs faster */
static uint64_t started;
static int prompt = 0; /* operations are done in the call that asks for them: to measure calls */
static size_t memory_limit = (size_t)1 << 30, memory_used;
static unsigned patience_us = 1500; /* the longest that an operation lies around unasked for */
static const char *architecture = "gfx906";
static char fail_name[64];
static int fail_after, fail_code;
static unsigned long long chance = 88172645463325252ull;
static char include_dir[4096] = ".", work_dir[4096] = "/tmp";

static unsigned random_below(unsigned bound) {
    chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
    return bound ? (unsigned)(chance >> 33) % bound : 0;
}

/* The log, and what was found wrong. */

#define LOG_SIZE (1 << 20)
static const char *calls[LOG_SIZE];
static unsigned call_count;
static char messages[256][200];
static unsigned message_count;

static void report(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (message_count < 256) vsnprintf(messages[message_count++], 200, format, arguments);
    va_end(arguments);
}

/* Begins every call: logs it, and answers what it is to fail with, if it is. */
static int begin(const char *name) {
    if (call_count < LOG_SIZE) calls[call_count++] = name;
    if (lost) return lost;
    /* To ask needs no memory. */
    int asks = !strcmp(name, "hipEventQuery") || !strcmp(name, "hipSetDevice");
    if (!fail_name[0] && fail_code == OUT_OF_MEMORY && asks) return 0;
    if (fail_after && (!fail_name[0] || !strcmp(fail_name, name)) && (fail_after < 0 || --fail_after == 0))
        return fail_code;
    return 0;
}

#define CALL(name)                          \
    pthread_mutex_lock(&lock);              \
    int failed = begin(name);               \
    if (failed) {                           \
        pthread_mutex_unlock(&lock);        \
        return failed;                      \
    }
#define DONE(result)                        \
    do {                                    \
        int outcome = (result);             \
        pthread_mutex_unlock(&lock);        \
        return outcome;                     \
    } while (0)

unsigned standin_calls(void) { return call_count; }
const char *standin_call(unsigned number) { return calls[number]; }
void standin_forget_calls(void) { call_count = 0; }
unsigned standin_messages(void) { return message_count; }
const char *standin_message(unsigned number) { return messages[number]; }
void standin_forget_messages(void) { message_count = 0; }
void standin_seed(unsigned long long seed) { chance = seed * 2654435761u + 88172645463325252ull; }
void standin_devices(int count) { device_count = count; }
void standin_integrated(int is) { integrated = is; }
void standin_prompt(int is) { prompt = is; }
/* Beside what devices that were lost have left behind. */
void standin_memory(size_t limit) { memory_limit = memory_used + limit; }
void standin_drift(int ppm) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    started = (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec, drift_ppm = ppm;
}
void standin_patience(unsigned us) { patience_us = us; }
void standin_architecture(const char *name) { architecture = strdup(name); }
void standin_places(const char *includes, const char *work) {
    snprintf(include_dir, sizeof include_dir, "%s", includes);
    snprintf(work_dir, sizeof work_dir, "%s", work);
}
void standin_fail(const char *name, int number, int code) {
    snprintf(fail_name, sizeof fail_name, "%s", name);
    fail_after = number, fail_code = code;
}
int standin_failed(void) { return fail_after == 0; }

/* Memory. */

enum kind { DEVICE, PINNED, REGISTERED };
struct memory {
    uintptr_t lo, hi;
    enum kind kind;
    int freed;
    struct memory *next;
};
static struct memory *memories;
static unsigned live_memories;

static struct memory *memory_at(uintptr_t at) {
    struct memory *old = NULL;
    for (struct memory *each = memories; each; each = each->next)
        if (each->lo <= at && at < each->hi) {
            if (!each->freed) return each;
            if (!old) old = each;
        }
    return old;
}

unsigned standin_live(void) { return live_memories; }

static void add_memory(uintptr_t lo, size_t size, enum kind kind) {
    struct memory *made = calloc(1, sizeof *made);
    made->lo = lo, made->hi = lo + size, made->kind = kind, made->next = memories;
    memories = made;
    live_memories++;
}

static int allocate(uintptr_t *out, size_t size, enum kind kind) {
    if (memory_used + size > memory_limit) return OUT_OF_MEMORY;
    void *room;
    if (posix_memalign(&room, 4096, size ? size : 1)) return OUT_OF_MEMORY;
    memset(room, 0xA7, size);
    memory_used += size;
    add_memory((uintptr_t)room, size, kind);
    *out = (uintptr_t)room;
    return 0;
}

/* Operations and the streams that do them. */

enum what { LAUNCH, COPY, FILL, RECORD, WAIT, GRAPH };
struct function {
    void (*run)(void **, const unsigned *, const unsigned *);
    size_t count, sizes[64];
    char name[128];
};
struct event {
    unsigned long long recorded, done;
    struct stream *stream;
    int destroyed, timed;
    uint64_t at; /* the device's time when it was reached, in ns */
};
struct graph { struct operation *first, *last; int running; struct graph *of; };
struct operation {
    enum what what;
    unsigned long long number;
    uint64_t due;
    uintptr_t target, source;
    size_t target_pitch, source_pitch, width, height;
    int word;
    struct function *function;
    unsigned grid[3], block[3];
    char *given;
    struct event *event;
    unsigned long long version;
    struct graph *graph;
    struct operation *next;
};
struct stream {
    pthread_t thread;
    struct operation *first, *last;
    unsigned long long issued, done, wanted;
    int closing;
    struct graph *capturing;
    struct stream *next;
};
static struct stream *streams;

static uint64_t now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

/* The device's clock, which may run faster than the host's. */
static uint64_t device_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    uint64_t ns = (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    return ns + (uint64_t)((double)(ns - started) * drift_ppm * 1e-6);
}

static void check_range(const char *what, uintptr_t at, size_t size) {
    struct memory *found = memory_at(at);
    if (!found) return;
    if (found->freed) report("use after free: %s", what);
    else if (at + size > found->hi) report("out of bounds: %s", what);
}

static size_t span_of(size_t pitch, size_t width, size_t height) {
    return height ? pitch * (height - 1) + width : 0;
}

static void **arguments_of(struct operation *op, void **room) {
    size_t at = 0;
    for (size_t i = 0; i < op->function->count; i++) {
        room[i] = op->given + at;
        at += (op->function->sizes[i] + 15) & ~(size_t)15;
    }
    return room;
}

static int touches(struct operation *op, struct memory *memory) {
    void *room[64];
    for (; op; op = op->next) {
        if (op->what == GRAPH && touches(op->graph->first, memory)) return 1;
        if (op->what == LAUNCH) {
            arguments_of(op, room);
            for (size_t i = 0; i < op->function->count; i++)
                if (op->function->sizes[i] == 8) {
                    uintptr_t pointer = *(uintptr_t *)room[i];
                    if (memory->lo <= pointer && pointer < memory->hi) return 1;
                }
        }
        if (op->what == COPY || op->what == FILL) {
            if (memory->lo <= op->target && op->target < memory->hi) return 1;
            if (op->what == COPY && memory->lo <= op->source && op->source < memory->hi) return 1;
        }
    }
    return 0;
}

/* Called with the lock; gives it up for as long as the work takes. */
static void work(struct operation *op) {
    void *room[64];
    switch (op->what) {
    case LAUNCH:
        arguments_of(op, room);
        for (size_t i = 0; i < op->function->count; i++)
            if (op->function->sizes[i] == 8)
                check_range(op->function->name, *(uintptr_t *)room[i], 1);
        pthread_mutex_unlock(&lock);
        op->function->run(room, op->grid, op->block);
        pthread_mutex_lock(&lock);
        break;
    case COPY:
        check_range("a copy's target", op->target, span_of(op->target_pitch, op->width, op->height));
        check_range("a copy's source", op->source, span_of(op->source_pitch, op->width, op->height));
        pthread_mutex_unlock(&lock);
        for (size_t row = 0; row < op->height; row++)
            memcpy((char *)op->target + row * op->target_pitch,
                   (char *)op->source + row * op->source_pitch, op->width);
        pthread_mutex_lock(&lock);
        break;
    case FILL:
        check_range("a fill", op->target, 4 * op->width);
        pthread_mutex_unlock(&lock);
        for (size_t i = 0; i < op->width; i++) ((int *)op->target)[i] = op->word;
        pthread_mutex_lock(&lock);
        break;
    case RECORD:
        if (op->version > op->event->done) op->event->done = op->version;
        op->event->at = device_ns();
        break;
    case WAIT:
        while (op->event->done < op->version && !lost) {
            struct stream *other = op->event->stream;
            if (other && other->wanted < other->issued) other->wanted = other->issued;
            pthread_cond_broadcast(&changed);
            pthread_cond_wait(&changed, &lock);
        }
        break;
    case GRAPH:
        if (op->graph->running++) report("a graph runs twice at once");
        pthread_mutex_unlock(&lock);
        usleep(100); /* a graph takes a while, so that two of them meet */
        pthread_mutex_lock(&lock);
        for (struct operation *each = op->graph->first; each; each = each->next) work(each);
        op->graph->running--;
        break;
    }
}

static void *run_stream(void *given) {
    struct stream *stream = given;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct operation *op = stream->first;
        if (!op) {
            if (stream->closing) break;
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        if (lost) {
            if (stream->closing) break;
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        uint64_t now = now_us();
        if (stream->wanted < op->number && now < op->due && !stream->closing) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            uint64_t nanoseconds = (uint64_t)until.tv_nsec + (op->due - now) * 1000;
            until.tv_sec += nanoseconds / 1000000000, until.tv_nsec = nanoseconds % 1000000000;
            pthread_cond_timedwait(&changed, &lock, &until);
            continue;
        }
        work(op);
        stream->first = op->next;
        if (!stream->first) stream->last = NULL;
        stream->done = op->number;
        free(op->given);
        free(op);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct operation *operation(enum what what) {
    struct operation *made = calloc(1, sizeof *made);
    made->what = what;
    return made;
}

static void append(struct operation **first, struct operation **last, struct operation *op) {
    if (*last) (*last)->next = op;
    else *first = op;
    *last = op;
}

static int enqueue(struct stream *stream, struct operation *op) {
    if (stream->capturing) {
        append(&stream->capturing->first, &stream->capturing->last, op);
        return 0;
    }
    if (stream->closing) {
        report("use after free: a stream");
        return BAD_HANDLE;
    }
    op->number = ++stream->issued;
    if (prompt && !stream->first) {
        work(op);
        stream->done = op->number;
        free(op->given);
        free(op);
        return 0;
    }
    op->due = now_us() + random_below(patience_us + 1);
    append(&stream->first, &stream->last, op);
    pthread_cond_broadcast(&changed);
    return 0;
}

static void finish(struct stream *stream) {
    unsigned long long until = stream->issued;
    if (stream->done >= until) return; /* done in the call: no thread waits for it */
    if (stream->wanted < until) stream->wanted = until;
    pthread_cond_broadcast(&changed);
    while (stream->done < until && !lost) pthread_cond_wait(&changed, &lock);
}

void standin_lose(int code) {
    pthread_mutex_lock(&lock);
    lost = code;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* The library: devices. */

const char *hipGetErrorName(int error) {
    switch (error) {
    case 0: return "hipSuccess";
    case INVALID: return "hipErrorInvalidValue";
    case OUT_OF_MEMORY: return "hipErrorOutOfMemory";
    case NO_DEVICE: return "hipErrorNoDevice";
    case NO_BINARY: return "hipErrorNoBinaryForGpu";
    case ALREADY_REGISTERED: return "hipErrorHostMemoryAlreadyRegistered";
    case LAUNCH_FAILURE: return "hipErrorLaunchFailure";
    default: return "hipErrorUnknown";
    }
}
int hipRuntimeGetVersion(int *version) { *version = 1; return 0; }
int hipGetDeviceCount(int *count) {
    CALL("hipGetDeviceCount");
    *count = device_count;
    DONE(device_count ? 0 : NO_DEVICE);
}
int hipSetDevice(int device) { CALL("hipSetDevice"); DONE(device < device_count ? 0 : 101); }
int hipDeviceGetName(char *name, int size, int device) {
    snprintf(name, size, "Penstock's stand-in for tests");
    return 0;
}
int hipDeviceTotalMem(size_t *bytes, int device) { *bytes = memory_limit; return 0; }
int hipDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 16: *value = integrated; break;
    case 24: case 85: *value = 1; break;
    case 26: case 27: case 28: case 56: *value = 1024; break;
    case 29: case 30: case 31: *value = 2147483647; break;
    case 74: *value = 65536; break;
    case 87: *value = 64; break;
    default: return INVALID;
    }
    return 0;
}
int hipGetDeviceProperties(void *properties, int device) {
    strcpy((char *)properties + 400, architecture);
    return 0;
}
int hipDeviceSynchronize(void) {
    CALL("hipDeviceSynchronize");
    for (struct stream *each = streams; each; each = each->next) finish(each);
    DONE(0);
}

/* The library: memory. */

static void not_while_capturing(const char *what) {
    for (struct stream *each = streams; each; each = each->next)
        if (each->capturing) report("%s while capturing", what);
}

static int release(uintptr_t pointer, int device, const char *what) {
    struct memory *found = memory_at(pointer);
    if (!found || found->lo != pointer || (found->kind == DEVICE) != device) {
        report("%s of memory that is not such", what);
        return INVALID;
    }
    if (found->freed) {
        report("double free: %s", what);
        return INVALID;
    }
    for (struct stream *each = streams; each; each = each->next)
        if (touches(each->first, found) && !lost) report("%s of memory in use", what);
    found->freed = 1;
    live_memories--;
    if (found->kind != REGISTERED) {
        memory_used -= found->hi - found->lo;
        memset((void *)found->lo, 0xDB, found->hi - found->lo); /* and it is never used again */
    } else {
        found->hi = found->lo; /* the caller's own, who goes on with it */
    }
    return 0;
}

int hipMalloc(uintptr_t *out, size_t size) {
    CALL("hipMalloc");
    not_while_capturing("hipMalloc");
    DONE(allocate(out, size, DEVICE));
}
int hipHostMalloc(uintptr_t *out, size_t size, unsigned flags) {
    CALL("hipHostMalloc");
    not_while_capturing("hipHostMalloc");
    DONE(allocate(out, size, PINNED));
}
int hipHostRegister(uintptr_t pointer, size_t size, unsigned flags) {
    CALL("hipHostRegister");
    for (struct memory *each = memories; each; each = each->next)
        if (!each->freed && each->lo < pointer + size && pointer < each->hi)
            DONE(ALREADY_REGISTERED);
    add_memory(pointer, size, REGISTERED);
    DONE(0);
}
static int forced(const char *name) { /* what gives back always works; it is only logged */
    if (call_count < LOG_SIZE) calls[call_count++] = name;
    return 0;
}
int hipFree(uintptr_t pointer) {
    pthread_mutex_lock(&lock);
    forced("hipFree");
    DONE(release(pointer, 1, "hipFree"));
}
int hipHostFree(uintptr_t pointer) {
    pthread_mutex_lock(&lock);
    forced("hipHostFree");
    DONE(release(pointer, 0, "hipHostFree"));
}
int hipHostUnregister(uintptr_t pointer) {
    pthread_mutex_lock(&lock);
    forced("hipHostUnregister");
    DONE(release(pointer, 0, "hipHostUnregister"));
}
int hipHostGetDevicePointer(uintptr_t *device, uintptr_t host, unsigned flags) {
    CALL("hipHostGetDevicePointer");
    struct memory *found = memory_at(host);
    *device = host;
    DONE(found && !found->freed && found->kind != DEVICE ? 0 : INVALID);
}

/* The library: streams and events. */

int hipStreamCreateWithFlags(uintptr_t *out, unsigned flags) {
    CALL("hipStreamCreateWithFlags");
    struct stream *made = calloc(1, sizeof *made);
    if (pthread_create(&made->thread, NULL, run_stream, made)) DONE(OUT_OF_MEMORY);
    made->next = streams, streams = made;
    *out = (uintptr_t)made;
    DONE(0);
}
int hipStreamDestroy(uintptr_t handle) {
    struct stream *stream = (struct stream *)handle;
    pthread_mutex_lock(&lock);
    forced("hipStreamDestroy");
    if (stream->first && !lost) report("a stream is destroyed with work to do");
    stream->closing = 1;
    for (struct stream **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) { *at = stream->next; break; }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    return 0; /* and never freed: events may still name it */
}
int hipEventCreateWithFlags(uintptr_t *out, unsigned flags) {
    CALL("hipEventCreateWithFlags");
    struct event *made = calloc(1, sizeof *made);
    made->timed = !(flags & 0x2);
    *out = (uintptr_t)made;
    DONE(0);
}
int hipEventDestroy(uintptr_t handle) {
    pthread_mutex_lock(&lock);
    forced("hipEventDestroy");
    struct event *event = (struct event *)handle;
    if (event->destroyed++) report("double free: hipEventDestroy");
    DONE(0);
}
int hipEventRecord(uintptr_t handle, uintptr_t stream) {
    CALL("hipEventRecord");
    struct event *event = (struct event *)handle;
    if (event->destroyed) report("use after free: hipEventRecord");
    struct operation *op = operation(RECORD);
    op->event = event, op->version = ++event->recorded;
    event->stream = (struct stream *)stream;
    DONE(enqueue((struct stream *)stream, op));
}
int hipEventQuery(uintptr_t handle) {
    CALL("hipEventQuery");
    struct event *event = (struct event *)handle;
    if (event->destroyed) report("use after free: hipEventQuery");
    if (event->done >= event->recorded) DONE(0);
    if (event->stream->wanted < event->stream->issued) {
        event->stream->wanted = event->stream->issued;
        pthread_cond_broadcast(&changed);
    }
    DONE(NOT_READY);
}
int hipEventElapsedTime(float *ms, uintptr_t from, uintptr_t to) {
    CALL("hipEventElapsedTime");
    struct event *start = (struct event *)from, *end = (struct event *)to;
    if (start->destroyed || end->destroyed) report("use after free: hipEventElapsedTime");
    if (!start->timed || !end->timed || !start->recorded || !end->recorded) DONE(BAD_HANDLE);
    if (start->done < start->recorded || end->done < end->recorded) DONE(NOT_READY);
    *ms = (float)((double)(int64_t)(end->at - start->at) * 1e-6);
    DONE(0);
}
int hipStreamWaitEvent(uintptr_t stream, uintptr_t handle, unsigned flags) {
    CALL("hipStreamWaitEvent");
    struct event *event = (struct event *)handle;
    if (event->destroyed) report("use after free: hipStreamWaitEvent");
    struct operation *op = operation(WAIT);
    op->event = event, op->version = event->recorded;
    DONE(enqueue((struct stream *)stream, op));
}

/* The library: work. */

static int pinned(uintptr_t at) {
    struct memory *found = memory_at(at);
    return found && !found->freed;
}

static int copy(struct stream *stream, uintptr_t target, size_t target_pitch, uintptr_t source,
                size_t source_pitch, size_t width, size_t height) {
    struct operation *op = operation(COPY);
    op->target = target, op->target_pitch = target_pitch;
    op->source = source, op->source_pitch = source_pitch;
    op->width = width, op->height = height;
    enqueue(stream, op);
    if (!pinned(target) || !pinned(source)) {
        forced("(blocking copy)");
        finish(stream);
    }
    return 0;
}
int hipMemcpyAsync(uintptr_t target, uintptr_t source, size_t size, int kind, uintptr_t stream) {
    CALL("hipMemcpyAsync");
    DONE(copy((struct stream *)stream, target, size, source, size, size, 1));
}
/* Returns when the copy is made; logged as blocking if it waits for other work. */
int hipMemcpyWithStream(uintptr_t target, uintptr_t source, size_t size, int kind, uintptr_t handle) {
    CALL("hipMemcpyWithStream");
    struct stream *stream = (struct stream *)handle;
    if (stream->first) forced("(blocking copy)");
    struct operation *op = operation(COPY);
    op->target = target, op->source = source, op->width = size, op->height = 1;
    enqueue(stream, op);
    finish(stream);
    DONE(lost);
}
int hipMemcpy2DAsync(uintptr_t target, size_t target_pitch, uintptr_t source, size_t source_pitch,
                     size_t width, size_t height, int kind, uintptr_t stream) {
    CALL("hipMemcpy2DAsync");
    if (target_pitch < width || source_pitch < width) DONE(INVALID);
    DONE(copy((struct stream *)stream, target, target_pitch, source, source_pitch, width, height));
}
int hipMemsetD32Async(uintptr_t target, int value, size_t count, uintptr_t stream) {
    CALL("hipMemsetD32Async");
    struct operation *op = operation(FILL);
    op->target = target, op->word = value, op->width = count;
    DONE(enqueue((struct stream *)stream, op));
}
int hipModuleLaunchKernel(uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, uintptr_t stream,
                          void **parameters, void **extra) {
    CALL("hipModuleLaunchKernel");
    struct operation *op = operation(LAUNCH);
    op->function = (struct function *)function;
    memcpy(op->grid, (unsigned[]){gx, gy, gz}, sizeof op->grid);
    memcpy(op->block, (unsigned[]){bx, by, bz}, sizeof op->block);
    size_t size = 0;
    for (size_t i = 0; i < op->function->count; i++)
        size += (op->function->sizes[i] + 15) & ~(size_t)15;
    op->given = calloc(1, size ? size : 1);
    void *room[64];
    arguments_of(op, room);
    for (size_t i = 0; i < op->function->count; i++)
        memcpy(room[i], parameters[i], op->function->sizes[i]);
    DONE(enqueue((struct stream *)stream, op));
}

/* The library: graphs. */

int hipStreamBeginCapture(uintptr_t stream, int mode) {
    CALL("hipStreamBeginCapture");
    ((struct stream *)stream)->capturing = calloc(1, sizeof(struct graph));
    DONE(0);
}
int hipStreamEndCapture(uintptr_t handle, uintptr_t *graph) {
    struct stream *stream = (struct stream *)handle;
    pthread_mutex_lock(&lock);
    int failed = begin("hipStreamEndCapture");
    *graph = failed ? 0 : (uintptr_t)stream->capturing;
    stream->capturing = NULL;
    DONE(failed);
}
int hipGraphInstantiate(uintptr_t *out, uintptr_t graph, void *node, char *log, size_t size) {
    CALL("hipGraphInstantiate");
    struct graph *made = calloc(1, sizeof *made);
    *made = *(struct graph *)graph; /* operations are kept as long as the process */
    *out = (uintptr_t)made;
    DONE(0);
}
int hipGraphExecUpdate(uintptr_t executable, uintptr_t graph, void *node, int *result) {
    CALL("hipGraphExecUpdate");
    struct graph *made = (struct graph *)executable, *from = (struct graph *)graph;
    struct operation *a = made->first, *b = from->first;
    for (; a && b; a = a->next, b = b->next)
        if (a->what != b->what || a->function != b->function) break;
    if (a || b) DONE(910);
    if (made->running) report("a graph is changed while it runs");
    made->first = from->first, made->last = from->last;
    DONE(0);
}
int hipGraphLaunch(uintptr_t executable, uintptr_t stream) {
    CALL("hipGraphLaunch");
    struct operation *op = operation(GRAPH);
    op->graph = (struct graph *)executable;
    DONE(enqueue((struct stream *)stream, op));
}
int hipGraphDestroy(uintptr_t graph) { forced("hipGraphDestroy"); return 0; }
int hipGraphExecDestroy(uintptr_t handle) {
    pthread_mutex_lock(&lock);
    forced("hipGraphExecDestroy");
    for (struct stream *each = streams; each; each = each->next)
        for (struct operation *op = each->first; op; op = op->next)
            if (op->what == GRAPH && op->graph == (struct graph *)handle && !lost)
                report("a graph is destroyed that is still to run");
    DONE(0);
}

/* The library: modules and their compiler. A code object is "STANDIN", the architecture it is for,
 * and the path of a library of the host's. */

struct program { char *source, entry[128], *log; char path[8400]; };

int hipModuleLoadData(uintptr_t *module, const void *image) {
    CALL("hipModuleLoadData");
    char arch[64], path[4200];
    if (sscanf(image, "\x7f" "ELF STANDIN %63s %4199s", arch, path) != 2) DONE(200);
    if (strcmp(arch, architecture)) DONE(NO_BINARY);
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *module = (uintptr_t)opened;
    DONE(opened ? 0 : 200);
}
int hipModuleUnload(uintptr_t module) { forced("hipModuleUnload"); return 0; }
int hipModuleGetFunction(uintptr_t *out, uintptr_t module, const char *name) {
    CALL("hipModuleGetFunction");
    char symbol[200];
    struct function *made = calloc(1, sizeof *made);
    snprintf(made->name, sizeof made->name, "%s", name);
    snprintf(symbol, sizeof symbol, "standin_run_%s", name);
    *(void **)&made->run = dlsym((void *)module, symbol);
    if (!made->run) DONE(NOT_FOUND);
    snprintf(symbol, sizeof symbol, "standin_sizes_%s", name);
    size_t (*sizes)(size_t *) = (size_t (*)(size_t *))dlsym((void *)module, symbol);
    made->count = sizes(made->sizes);
    *out = (uintptr_t)made;
    DONE(0);
}

const char *hiprtcGetErrorString(int result) {
    return result == 6 ? "HIPRTC_ERROR_COMPILATION" : result ? "HIPRTC_ERROR" : "HIPRTC_SUCCESS";
}
int hiprtcCreateProgram(uintptr_t *out, const char *source, const char *name, int headers,
                        const char **sources, const char **names) {
    struct program *made = calloc(1, sizeof *made);
    made->source = strdup(source);
    *out = (uintptr_t)made;
    return 0;
}
int hiprtcDestroyProgram(uintptr_t *program) { return 0; }
int hiprtcAddNameExpression(uintptr_t program, const char *expression) {
    snprintf(((struct program *)program)->entry, 128, "%s", expression);
    return 0;
}
int hiprtcGetLoweredName(uintptr_t program, const char *expression, const char **name) {
    *name = ((struct program *)program)->entry;
    return 0;
}

static uint64_t mix(uint64_t hash, char c) { return (hash ^ (unsigned char)c) * 1099511628211ull; }

/* The same source with the same options is compiled once; a hash names its library. */
int hiprtcCompileProgram(uintptr_t handle, int count, const char **options) {
    struct program *program = (struct program *)handle;
    static char command[65536], text[65536];
    char wanted[64] = "";
    uint64_t hash = 1469598103934665603ull;
    for (const char *at = program->source; *at; at++) hash = mix(hash, *at);
    for (const char *at = program->entry; *at; at++) hash = mix(hash, *at);
    pthread_mutex_lock(&lock);
    int used = 0;
    for (int i = 0; i < count; i++) {
        if (!strncmp(options[i], "--gpu-architecture=", 19)) {
            snprintf(wanted, sizeof wanted, "%s", options[i] + 19);
            continue;
        }
        used += snprintf(command + used, sizeof command - used, " '%s'", options[i]);
        for (const char *at = options[i]; *at; at++) hash = mix(hash, *at);
    }
    char *chosen = strdup(command), source[4200], library[4200], log[4300];
    if (!used) chosen[0] = 0;
    snprintf(library, sizeof library, "%s/%016llx.so", work_dir, (unsigned long long)hash);
    snprintf(source, sizeof source, "%s/%016llx.%d.cpp", work_dir, (unsigned long long)hash, getpid());
    snprintf(log, sizeof log, "%s.log", source);
    snprintf(program->path, sizeof program->path, "\x7f" "ELF STANDIN %s %s", wanted, library);
    if (access(library, R_OK)) {
        FILE *file = fopen(source, "w");
        int together = strstr(program->source, "__syncthreads") != NULL;
        fprintf(file, "#include \"%s/standin.h\"\n#line 1 \"penstock.hip\"\n%s\nSTANDIN_KERNEL(%s, %s)\n",
                include_dir, program->source, program->entry, together ? "true" : "false");
        fclose(file);
        snprintf(command, sizeof command,
                 "c++ -w -O1 -shared -fPIC -Wl,-Bsymbolic%s '%s' -o '%s.part' 2> '%s' && mv '%s.part' '%s'", chosen,
                 source, source, log, source, library);
        int result = system(command);
        file = fopen(log, "r");
        size_t read = file ? fread(text, 1, sizeof text - 1, file) : 0;
        text[read] = 0;
        if (file) fclose(file);
        unlink(log);
        unlink(source);
        program->log = strdup(text);
        if (result) {
            free(chosen);
            pthread_mutex_unlock(&lock);
            return 6;
        }
    }
    free(chosen);
    pthread_mutex_unlock(&lock);
    return 0;
}
int hiprtcGetProgramLogSize(uintptr_t program, size_t *size) {
    char *log = ((struct program *)program)->log;
    *size = log ? strlen(log) + 1 : 0;
    return 0;
}
int hiprtcGetProgramLog(uintptr_t program, char *log) {
    strcpy(log, ((struct program *)program)->log);
    return 0;
}
int hiprtcGetCodeSize(uintptr_t program, size_t *size) {
    *size = strlen(((struct program *)program)->path) + 1;
    return 0;
}
int hiprtcGetCode(uintptr_t program, char *code) {
    strcpy(code, ((struct program *)program)->path);
    return 0;
}
