/* The call of a kernel: the common case of `Kernel.__call__`, which is the whole of it.

   A call either does everything, or finds something unusual before it has changed anything; then
   it calls the Python function with the arguments as they came. What is usual: every argument by
   its name, arrays that this kernel has had before, plain numbers, a stream with room, nothing that
   waits for another stream, no graph being captured, a device lock that is free. */

#include "layout.h"

enum { MOST_ARRAYS = 24, MOST_ARGUMENTS = 64, MOST_BYTES = 256 };

/* What a value given to a call is for. */
enum { STREAM = MOST_ARGUMENTS, THREADS, GROUPS, PLACES };

typedef struct {
    char code; /* as in Python's `struct` */
    Py_ssize_t offset;
} Scalar;

/* The Python objects that a call works with. */
#define OBJECTS(OBJECT)                                                                            \
    OBJECT(names) /* a tuple: the names of the arrays, then of the scalars, all interned */        \
    OBJECT(wants) /* a tuple: what each array must have been accepted for */                       \
    OBJECT(counts_of_threads) OBJECT(counts_of_groups) /* dicts */                                 \
    OBJECT(scheduler) OBJECT(default_stream) OBJECT(program) OBJECT(name) OBJECT(what)             \
    OBJECT(results) OBJECT(parameters) /* a tuple */ OBJECT(bring_back)                            \
    OBJECT(numbers) /* a frozenset: the types of plain numbers, NumPy's among them */              \
    OBJECT(formats) /* a tuple: of each array, the key of its texels in `Bound.texels`, or None */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    /* What the call needs to know of the kernel, which does not change: threads read it without a
       lock. `ready` is 0 where only Python can call it, or the kernel is closed. */
    atomic_int ready;
    Py_ssize_t arrays, scalars, nbytes;
    unsigned char writes[MOST_ARRAYS];
    signed char order[MOST_ARRAYS + 1]; /* by binding: an array's number, or -1 for the result */
    Py_ssize_t bindings;
    Scalar scalar[MOST_ARGUMENTS];
#define DECLARE(name) PyObject *name;
    OBJECTS(DECLARE)
#undef DECLARE
} Callable;

static PyObject *empty_bytes;
#ifdef Py_GIL_DISABLED
typedef atomic_ullong Counter;
#define COUNT(which) atomic_fetch_add_explicit(&which, 1, memory_order_relaxed)
#else
typedef unsigned long long Counter;
#define COUNT(which) which++
#endif
static Counter made, left; /* launches: natively, and left to Python */

/* Why a launch is left to Python, as far as it is found here. */
#define REASONS(REASON)                                                                            \
    REASON(KERNEL, "the kernel, or arguments without names")                                       \
    REASON(NAMES, "names of arguments")                                                            \
    REASON(NO_ARRAY, "an argument that is no array of the device")                                 \
    REASON(NUMBER, "a number that is not a plain one")                                             \
    REASON(COUNTS, "a number of threads or groups that is new")                                    \
    REASON(STATE, "a graph being recorded, a stream that is full or closed, a call within a call") \
    REASON(NEW_ARRAY, "an array that is new, moved, shown, guarded or closed")                     \
    REASON(LEDGER, "the ledger: another stream, or many accesses")
enum {
#define NAME(name, words) name,
    REASONS(NAME)
#undef NAME
};
static const char *const WORDS[] = {
#define TEXT(name, words) words,
    REASONS(TEXT)
#undef TEXT
};
static Counter left_for[Py_ARRAY_LENGTH(WORDS)];

static void
leave(int reason)
{
    COUNT(left_for[reason]);
}

/* --- which name is which argument ----------------------------------------------------------- */

/* Put each value of a call in the place of what its name says it is for; 0 if a name is unknown,
   given by an object other than the interned one, or missing. */
static int
place_values(Callable *self, PyObject *const *values, PyObject *names, PyObject **given)
{
    Py_ssize_t wanted = self->arrays + self->scalars, found = 0, next = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        Py_ssize_t place = next; /* most calls name the arguments in their order */
        if (place >= wanted || PyTuple_GET_ITEM(self->names, place) != name)
            for (place = 0; place < wanted && PyTuple_GET_ITEM(self->names, place) != name;)
                place++;
        if (place < wanted) {
            next = place + 1;
            found++;
        }
        else if (name == named.threads)
            place = THREADS;
        else if (name == named.groups)
            place = GROUPS;
        else if (name == named.stream)
            place = STREAM;
        else
            return 0;
        given[place] = values[i];
    }
    return found == wanted;
}

/* --- scalars --------------------------------------------------------------------------------- */

static const struct {
    char code;
    int size;
    long long least;
    unsigned long long most;
} INTEGERS[] = {
    {'b', 1, INT8_MIN, INT8_MAX},   {'B', 1, 0, UINT8_MAX},  {'h', 2, INT16_MIN, INT16_MAX},
    {'H', 2, 0, UINT16_MAX},        {'i', 4, INT32_MIN, INT32_MAX}, {'I', 4, 0, UINT32_MAX},
    {'q', 8, INT64_MIN, INT64_MAX}, {'Q', 8, 0, UINT64_MAX},
};

/* Whether a value is a number that is packed as it is: nothing but NumPy's C code runs for that. The
   hash of a class with a metaclass of its own may be the caller's code, which Python is to run. */
static int
is_number(PyObject *numbers, PyObject *value)
{
    PyObject *type = (PyObject *)Py_TYPE(value);
    return PyFloat_CheckExact(value) || PyLong_CheckExact(value) ||
           (Py_TYPE(type) == &PyType_Type && PySet_Contains(numbers, type) == 1);
}

/* Put a number into a float's place; -1 with an exception set if it does not fit. */
static int
pack_float(char code, PyObject *value, char *to)
{
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred())
        return -1;
    return code == 'f'   ? PyFloat_Pack4(number, to, 1)
           : code == 'd' ? PyFloat_Pack8(number, to, 1)
                         : PyFloat_Pack2(number, to, 1);
}

/* Put an int into an integer's place; 0 if it does not fit. */
static int
pack_integer(char code, PyObject *value, char *to)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(INTEGERS); i++) {
        if (INTEGERS[i].code != code)
            continue;
        int overflow;
        long long small = PyLong_AsLongLongAndOverflow(value, &overflow);
        unsigned long long bits = (unsigned long long)small;
        if (overflow > 0 && code == 'Q') {
            bits = PyLong_AsUnsignedLongLong(value);
            if (PyErr_Occurred())
                return 0;
        }
        else if (overflow || small < INTEGERS[i].least ||
                 (small > 0 && bits > INTEGERS[i].most))
            return 0;
        for (int byte = 0; byte < INTEGERS[i].size; byte++)
            to[byte] = (char)(bits >> 8 * byte);
        return 1;
    }
    return 0;
}

/* Put a number into the block, as `struct.pack` does; 0 if it is not a plain number that fits. */
static int
pack(PyObject *numbers, const Scalar *scalar, PyObject *value, char *block)
{
    char *to = block + scalar->offset;
    int packed = 0;
    if (!is_number(numbers, value))
        return 0;
    if (scalar->code == 'f' || scalar->code == 'd' || scalar->code == 'e')
        packed = pack_float(scalar->code, value, to) == 0;
    else {
        PyObject *whole = PyNumber_Index(value);
        packed = whole != NULL && pack_integer(scalar->code, whole, to);
        Py_XDECREF(whole);
    }
    if (!packed)
        PyErr_Clear();
    return packed;
}

/* --- one launch ------------------------------------------------------------------------------ */

/* What a launch uses: borrowed references, good while the device's lock is held. */
typedef struct {
    PyObject *stream, *lane, *counts, *block;
    PyObject *value; /* of its completion; owned, once it is recorded */
    PyObject *arrays[MOST_ARRAYS];
    PyObject *places[MOST_ARRAYS]; /* of arrays: what the driver binds */
    PyObject *uses[MOST_ARRAYS + 1];
    Py_ssize_t used;
    PyObject *behind; /* the access that a barrier separates it from, if one is needed */
    PyObject *start;  /* for receipts: when the kernel was called; owned, NULL without a trace */
} Launch;

/* Whether threads or groups are asked for in a way that a dict can be asked: its keys compare equal
   to numbers of other types. */
static int
is_plain_count(PyObject *asked)
{
    if (PyLong_CheckExact(asked))
        return 1;
    if (!PyTuple_CheckExact(asked))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(asked); i++)
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(asked, i)))
            return 0;
    return 1;
}

/* How many groups to run, from what was learned from earlier calls; a new reference. NULL if that
   does not tell, or none are to be run. */
static PyObject *
group_counts(Callable *self, PyObject *threads, PyObject *groups)
{
    PyObject *counts = NULL;
    if (groups == Py_None && is_plain_count(threads))
        counts = find(self->counts_of_threads, threads);
    else if (threads == Py_None && is_plain_count(groups))
        counts = find(self->counts_of_groups, groups);
    if (counts != NULL && number(PyTuple_GET_ITEM(counts, 0)) <= 0)
        Py_CLEAR(counts);
    return counts;
}

/* Whether an array can be used as it is: checked for this kernel before, not moved, not shown by a
   view, open, and not guarded if it is written. Under the lock. */
static int
is_usual(Callable *self, Py_ssize_t i, PyObject *array, PyObject **bound)
{
    /* First whether it was accepted: only then is it the lock of the array's own device. */
    PyObject *accepted = reference_in(array, Array_accepted);
    int known = accepted != NULL && PySet_CheckExact(accepted) &&
                PySet_Contains(accepted, PyTuple_GET_ITEM(self->wants, i)) == 1;
    Py_XDECREF(accepted);
    PyObject *buffer = SLOT(array, Array_buffer);
    *bound = SLOT(array, Array_bound);
    if (!known || buffer == NULL || *bound == NULL || Py_TYPE(*bound) != is.Bound)
        return 0;
    PyObject *backing = SLOT(buffer, Buffer_backing);
    return SLOT(*bound, Bound_backing) == backing &&
           PyList_GET_SIZE(SLOT(backing, Backing_views)) == 0 &&
           SLOT(buffer, Buffer_closed) == Py_False &&
           (!self->writes[i] || SLOT(buffer, Buffer_guarded) == Py_False);
}

/* What the driver binds for an array: its bytes, or a view of them as texels that was made before.
   NULL if there is no such view. Under the lock. */
static PyObject *
place_of(Callable *self, Py_ssize_t i, PyObject *bound)
{
    PyObject *format = PyTuple_GET_ITEM(self->formats, i);
    if (format == Py_None)
        return SLOT(bound, Bound_place);
    PyObject *view = find(SLOT(bound, Bound_texels), format);
    Py_XDECREF(view); /* the dict keeps it: under the lock, nothing replaces the dict */
    return view == NULL ? NULL : PyTuple_GET_ITEM(view, 0);
}

/* What the bytes that a launch uses demand of it: 0, or -1 if Python must find out. */
static int
find_needs(Launch *launch)
{
    launch->behind = NULL;
    for (Py_ssize_t i = 0; i < launch->used; i++)
        if (ledger_needs(launch->lane, launch->uses[i], &launch->behind) < 0)
            return -1;
    return 0;
}

/* Everything that may refuse: 1 if the launch is usual, 0 if Python must do it. Under the lock. */
static int
check(Callable *self, Launch *launch)
{
    PyObject *stream = launch->stream;
    if (!self->ready || SLOT(stream, Stream_plain) != Py_True)
        return leave(STATE), 0;
    PyObject *lane = launch->lane = SLOT(stream, Stream_lane);
    if (PyList_GET_SIZE(SLOT(lane, Lane_appended)))
        return leave(LEDGER), 0;
    for (Py_ssize_t i = 0; i < self->arrays; i++) {
        PyObject *bound;
        if (!is_usual(self, i, launch->arrays[i], &bound))
            return leave(NEW_ARRAY), 0;
        launch->places[i] = place_of(self, i, bound);
        if (launch->places[i] == NULL)
            return leave(NEW_ARRAY), 0;
        launch->uses[i] = SLOT(bound, Bound_reading);
        if (self->writes[i])
            launch->uses[i] = SLOT(bound, Bound_writing);
        if (Py_TYPE(PyTuple_GET_ITEM(launch->uses[i], 0)) != is.History)
            return leave(LEDGER), 0;
    }
    launch->used = self->arrays;
    if (find_needs(launch) < 0 ||
        (SLOT(self->scheduler, Scheduler_plain) != Py_True &&
         PyDict_GET_SIZE(SLOT(launch->stream, Stream__waits)))) /* the receipt tells what for */
        return leave(LEDGER), 0;
    return 1;
}

/* What the driver binds, in a row, as `Bindings.flat` puts it together. */
static PyObject *
flat_bindings(Callable *self, Launch *launch, PyObject *result_memory)
{
    PyObject *flat = PyBytes_FromStringAndSize(NULL, PLACE * self->bindings);
    for (Py_ssize_t i = 0; flat != NULL && i < self->bindings; i++) {
        PyObject *place = self->order[i] < 0
                              ? SLOT(result_memory, ResultMemory_place)
                              : launch->places[self->order[i]];
        memcpy(PyBytes_AS_STRING(flat) + PLACE * i, PyBytes_AS_STRING(place), PLACE);
    }
    return flat;
}

/* Record a launch that was checked: `Launch.record`. Its result, or None; NULL if it failed. */
static PyObject *
record(Callable *self, Launch *launch)
{
    PyObject *stream = launch->stream, *lane = launch->lane, *behind = NULL;
    PyObject *result = Py_NewRef(Py_None), *memory = NULL, *flat = NULL, *batch = NULL;
    PyObject *here = NULL, *began = NULL; /* for receipts: its place, and a mark of its start */
    int traced = SLOT(self->scheduler, Scheduler_plain) != Py_True;
    int done = 0;
    if (self->results != Py_None) {
        Py_SETREF(result, result_new(self->results, self->what));
        if (result == NULL)
            return NULL;
        memory = SLOT(result, Result__memory);
        launch->uses[launch->used] = SLOT(memory, ResultMemory_use);
        if (Py_TYPE(PyTuple_GET_ITEM(launch->uses[launch->used], 0)) != is.History)
            goto end;
        launch->used++;
        if (find_needs(launch) < 0) /* again: whatever made the result may have polled the stream */
            goto end;
    }
    behind = Py_XNewRef(launch->behind);
    flat = flat_bindings(self, launch, memory);
    if (flat == NULL || (batch = stream_batch(stream)) == NULL)
        goto end;
    PyObject *recording = SLOT(batch, Batch_recording), *value = SLOT(batch, Batch_value);
    if (traced && (here = trace_place(lane, batch)) == NULL)
        goto end;
    if (behind != NULL &&
        (record_barrier(recording) < 0 || (traced && trace_barrier(behind, here) < 0) ||
         put_number(lane, Lane_epoch, number(SLOT(lane, Lane_epoch)) + 1) < 0))
        goto end;
    if (behind != NULL && !traced)
        count(BARRIERS, 1);
    if (traced && (began = trace_begins(batch)) == NULL)
        goto end;
    for (Py_ssize_t i = 0; i < launch->used; i++) {
        PyObject *use = launch->uses[i];
        if (ledger_note(lane, use, value, self->what) < 0)
            goto end;
        if (PyTuple_GET_ITEM(use, 2) == Py_True &&
            SLOT(PyTuple_GET_ITEM(use, 0), History_device_only) != Py_True)
            put(batch, Batch_must_publish, Py_True);
    }
    if (memory != NULL) {
        if (result_launched(result, lane, value) < 0)
            goto end;
        put(batch, Batch_must_publish, Py_True);
    }
    if (record_dispatch(recording, self->program, flat, launch->block, launch->counts) < 0)
        goto end;
    if (traced && (trace_launch(self->name, launch->counts, here, launch->uses, self->arrays,
                                launch->start) < 0 ||
                   trace_ends(batch, began, here) < 0))
        goto end;
    if (!traced)
        count(LAUNCHES, 1);
    long long commands = number(SLOT(batch, Batch_count)) + 1;
    if (put_number(batch, Batch_count, commands) < 0)
        goto end;
    if (commands >= number_in(batch, Batch_look_at) && stream_consider(stream, batch) < 0)
        goto end;
    launch->value = Py_NewRef(value);
    done = 1;
end:
    Py_XDECREF(began);
    Py_XDECREF(here);
    Py_XDECREF(behind);
    Py_XDECREF(flat);
    Py_XDECREF(batch);
    if (done)
        return result;
    Py_DECREF(result);
    return NULL;
}

/* Launch with arrays of the device, if that is usual. NULL without an exception if Python must. */
static PyObject *
launch_arrays(Callable *self, Launch *launch, const char *block)
{
    PyObject *scheduler = Py_NewRef(self->scheduler), *result = NULL;
    if (!lock_taken(scheduler, at.Scheduler_ready)) {
        Py_DECREF(scheduler);
        return leave(STATE), NULL;
    }
    if (check(self, launch)) {
        launch->block = self->nbytes ? PyBytes_FromStringAndSize(block, self->nbytes)
                                     : Py_NewRef(empty_bytes);
        if (launch->block != NULL)
            result = record(self, launch);
        Py_XDECREF(launch->block);
    }
    lock_left(scheduler);
    Py_DECREF(scheduler);
    return result;
}

/* Have Python wait for a launch and copy back what it wrote; -1 with an exception set. One that is
   set already is raised then: the launch is recorded, so its outcome must reach the caller. */
static int
bring_back(PyObject *function, Launch *launch, Carried *carried, Py_ssize_t count)
{
    Raised aside = set_aside();
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *three = PyTuple_Pack(3, carried[i].host, carried[i].array, carried[i].parameter);
        if (three == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, three);
    }
    PyObject *arguments[] = {list, launch->stream, launch->value};
    PyObject *done = list == NULL ? NULL : PyObject_Vectorcall(function, arguments, 3, NULL);
    Py_XDECREF(list);
    Py_XDECREF(done);
    if (done == NULL)
        drop_raised(aside);
    else
        raise_again(aside);
    return PyErr_Occurred() ? -1 : 0;
}

/* The same with NumPy arrays among the arguments. */
static PyObject *
launch_carrying(Callable *self, Launch *launch, const char *block, Carried *carried,
                Py_ssize_t count, const Py_ssize_t *places)
{
    PyObject *scheduler = self->scheduler;
    if (!carry_in(scheduler, carried, count))
        return leave(NO_ARRAY), NULL;
    /* Another thread may close the kernel while this one waits. */
    PyObject *function = Py_NewRef(self->bring_back);
    Py_INCREF(scheduler);
    for (Py_ssize_t i = 0; i < count; i++)
        launch->arrays[places[i]] = carried[i].array;
    PyObject *result = launch_arrays(self, launch, block);
    int launched = result != NULL;
    if (launched &&
        !carry_back(scheduler, launch->lane, launch->value, carried, count) &&
        bring_back(function, launch, carried, count) < 0)
        Py_CLEAR(result);
    carry_ends(scheduler, carried, count, launched);
    if (PyErr_Occurred())
        Py_CLEAR(result);
    Py_DECREF(scheduler);
    Py_DECREF(function);
    return result;
}

/* Launch if that is usual. NULL without an exception if Python must do it. */
static PyObject *
launch(Callable *self, PyObject *const *values, PyObject *names)
{
    PyObject *given[PLACES];
    Launch launch = {0};
    Carried carried[MOST_ARRAYS];
    Py_ssize_t places[MOST_ARRAYS], count = 0;
    char block[MOST_BYTES];
    given[STREAM] = given[THREADS] = given[GROUPS] = Py_None;
    if (names == NULL || !place_values(self, values, names, given))
        return leave(NAMES), NULL;
    for (Py_ssize_t i = 0; i < self->arrays; i++) {
        launch.arrays[i] = given[i];
        if (Py_TYPE(given[i]) != is.Array) {
            PyObject *parameter = PyTuple_GET_ITEM(self->parameters, i);
            if (PyList_GET_SIZE(SLOT(parameter, KernelParameter_spare)) == 0)
                return leave(NO_ARRAY), NULL; /* not a NumPy array, or the first one */
            carried[count] = (Carried){given[i], parameter, self->writes[i], NULL, 0};
            places[count++] = i;
        }
    }
    memset(block, 0, (size_t)self->nbytes);
    for (Py_ssize_t i = 0; i < self->scalars; i++)
        if (!pack(self->numbers, &self->scalar[i], given[self->arrays + i], block))
            return leave(NUMBER), NULL;
    launch.stream = given[STREAM] == Py_None ? self->default_stream : given[STREAM];
    if (Py_TYPE(launch.stream) != is.Stream ||
        SLOT(launch.stream, Stream_scheduler) != self->scheduler)
        return leave(STATE), NULL;
    launch.counts = group_counts(self, given[THREADS], given[GROUPS]);
    if (launch.counts == NULL)
        return leave(COUNTS), NULL;
    /* Placing the arguments is no part of the time that the receipt has; it takes no clock there. */
    PyObject *result = NULL;
    if (!traces_active || (launch.start = trace_time()) != NULL)
        result = count ? launch_carrying(self, &launch, block, carried, count, places)
                       : launch_arrays(self, &launch, block);
    Py_DECREF(launch.counts);
    Py_XDECREF(launch.value);
    Py_XDECREF(launch.start);
    return result;
}

static PyObject *
call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (((Callable *)self)->ready && PyVectorcall_NARGS(nargsf) == 0) {
        PyObject *result = launch((Callable *)self, args, names);
        if (result != NULL || PyErr_Occurred()) {
            COUNT(made);
            return result;
        }
    }
    else
        leave(KERNEL);
    COUNT(left);
    /* Not `tp_call`, which leads back here. */
    PyObject *function = PyObject_GetAttr((PyObject *)Py_TYPE(self), named.__call__);
    if (function == NULL)
        return NULL;
    Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
    Py_ssize_t count = positional + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    PyObject *small[MOST_ARGUMENTS + 4], **all = small;
    if (count + 1 > (Py_ssize_t)Py_ARRAY_LENGTH(small)) {
        all = PyMem_New(PyObject *, (size_t)count + 1);
        if (all == NULL) {
            Py_DECREF(function);
            return PyErr_NoMemory();
        }
    }
    all[0] = self;
    if (count)
        memcpy(all + 1, args, (size_t)count * sizeof *args);
    PyObject *result = PyObject_Vectorcall(function, all, (size_t)positional + 1, names);
    if (all != small)
        PyMem_Free(all);
    Py_DECREF(function);
    return result;
}

PyObject *
native_launches(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("KK", (unsigned long long)made, (unsigned long long)left);
}

PyObject *
native_left(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *counts = PyDict_New();
    for (size_t i = 0; counts != NULL && i < Py_ARRAY_LENGTH(WORDS); i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(left_for[i]);
        if (count == NULL || PyDict_SetItemString(counts, WORDS[i], count) < 0)
            Py_CLEAR(counts);
        Py_XDECREF(count);
    }
    return counts;
}

/* --- the type -------------------------------------------------------------------------------- */

static int
callable_traverse(PyObject *object, visitproc visit, void *arg)
{
    Callable *self = (Callable *)object;
#define VISIT(name) Py_VISIT(self->name);
    OBJECTS(VISIT)
#undef VISIT
    return 0;
}

static int
callable_clear(PyObject *object)
{
    Callable *self = (Callable *)object;
    self->ready = 0;
#define CLEAR(name) Py_CLEAR(self->name);
    OBJECTS(CLEAR)
#undef CLEAR
    return 0;
}

static void
callable_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    callable_clear(object);
    type->tp_free(object);
}

static PyObject *
callable_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)args, (void)keywords; /* for `__init__` */
    Callable *self = (Callable *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->vectorcall = call;
    return (PyObject *)self;
}

/* Whether all classes are known that a launch needs, on whichever driver. */
static int
has_core_classes(void)
{
    return is.Lane && is.Access && is.History && is.Backing && is.Buffer && is.Array && is.Bound &&
           is.Batch && is.Stream && is.SubmitPolicy && is.Scheduler && is.FinaliserQueue &&
           is.KernelParameter && is.HostMemory && is.HostViews && is.Shutdown && is.Guest &&
           is.Result && is.ResultPool && is.ResultMemory && is.OutOfMemory &&
           trace_is_ready();
}

PyDoc_STRVAR(get_ready_doc,
"get_ready(names, wants, writes, order, scalars, nbytes, objects)\n--\n\n"
"Let calls of the common kind be made natively.\n\n"
"names: of the arrays, then of the scalars. wants, writes: of each array. order: by binding, an\n"
"array's number, or -1 for the result. scalars: (code of `struct`, offset) each, in a block of\n"
"nbytes. objects: what a launch works on.");

static PyObject *
get_ready(PyObject *object, PyObject *args)
{
    Callable *self = (Callable *)object;
    if (self->names != NULL) {
        PyErr_SetString(PyExc_ValueError, "this kernel is ready: threads may be calling it");
        return NULL;
    }
    PyObject *names, *wants, *writes, *order, *scalars, *threads, *groups, *scheduler, *stream,
        *program, *name, *what, *results, *parameters, *bring_back, *numbers, *formats;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!n(O!O!OOOOOOO!OO!O!):get_ready", &PyTuple_Type, &names,
                          &PyTuple_Type, &wants, &PyTuple_Type, &writes, &PyTuple_Type, &order,
                          &PyTuple_Type, &scalars, &nbytes, &PyDict_Type, &threads, &PyDict_Type,
                          &groups, &scheduler, &stream, &program, &name, &what, &results,
                          &PyTuple_Type, &parameters, &bring_back, &PyFrozenSet_Type, &numbers,
                          &PyTuple_Type, &formats))
        return NULL;
    Py_ssize_t arrays = PyTuple_GET_SIZE(wants), count = PyTuple_GET_SIZE(scalars);
    if (!has_core_classes() || !PyObject_TypeCheck(scheduler, is.Scheduler) ||
        Py_TYPE(stream) != is.Stream || arrays > MOST_ARRAYS ||
        PyTuple_GET_SIZE(parameters) != arrays || PyTuple_GET_SIZE(formats) != arrays ||
        PyTuple_GET_SIZE(writes) != arrays || arrays + count > MOST_ARGUMENTS ||
        PyTuple_GET_SIZE(names) != arrays + count || PyTuple_GET_SIZE(order) > MOST_ARRAYS + 1 ||
        nbytes < 0 || nbytes > MOST_BYTES) {
        PyErr_SetString(PyExc_ValueError, "this kernel can only be called through Python");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < arrays; i++)
        self->writes[i] = PyTuple_GET_ITEM(writes, i) == Py_True;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(order); i++)
        self->order[i] = (signed char)PyLong_AsLong(PyTuple_GET_ITEM(order, i));
    for (Py_ssize_t i = 0; i < count; i++) {
        int code;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(scalars, i), "Cn", &code, &self->scalar[i].offset))
            return NULL;
        self->scalar[i].code = (char)code;
    }
    if (PyErr_Occurred())
        return NULL;
    self->arrays = arrays;
    self->scalars = count;
    self->nbytes = nbytes;
    self->bindings = PyTuple_GET_SIZE(order);
    self->names = Py_NewRef(names);
    self->wants = Py_NewRef(wants);
    self->counts_of_threads = Py_NewRef(threads);
    self->counts_of_groups = Py_NewRef(groups);
    self->scheduler = Py_NewRef(scheduler);
    self->default_stream = Py_NewRef(stream);
    self->program = Py_NewRef(program);
    self->name = Py_NewRef(name);
    self->what = Py_NewRef(what);
    self->results = Py_NewRef(results);
    self->parameters = Py_NewRef(parameters);
    self->bring_back = Py_NewRef(bring_back);
    self->numbers = Py_NewRef(numbers);
    self->formats = Py_NewRef(formats);
    self->ready = 1;
    Py_RETURN_NONE;
}

static PyObject *
retire(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    ((Callable *)object)->ready = 0; /* and no more: another thread may be in the middle of a call */
    Py_RETURN_NONE;
}

static PyMethodDef callable_methods[] = {
    {"_get_ready", get_ready, METH_VARARGS, get_ready_doc},
    {"_retire", retire, METH_NOARGS, "_retire()\n--\n\nLeave every call to Python from now on."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject Callable_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "penstock._native.Callable",
    .tp_doc = "A kernel as far as it is called: the base of `Kernel`, which has `__call__`.",
    .tp_basicsize = sizeof(Callable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = callable_new,
    .tp_dealloc = callable_dealloc,
    .tp_traverse = callable_traverse,
    .tp_clear = callable_clear,
    .tp_methods = callable_methods,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Callable, vectorcall),
};

/* Have calls of a subclass's objects come here, and its `__call__` be what this leaves to Python.
   A class that defines `__call__` is otherwise called by that. */
void
call_natively(PyTypeObject *class)
{
    class->tp_vectorcall_offset = offsetof(Callable, vectorcall);
    class->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    PyType_Modified(class);
}

int
call_setup(void)
{
    empty_bytes = PyBytes_FromStringAndSize(NULL, 0);
    nothing = PyTuple_New(0);
    return empty_bytes == NULL || nothing == NULL ? -1 : 0;
}
