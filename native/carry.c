/* NumPy arrays as arguments of a launch, as `penstock.launch.numpy_arguments` carries them: into a
   temporary that its parameter has kept, and back if the kernel writes it. */

#include "layout.h"

static const Py_ssize_t LOOK_AT = 8; /* temporaries: `numpy_arguments._LOOK_AT` */

/* Whether all work of a list of accesses is done. */
static int
is_done(PyObject *entries)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++) {
        PyObject *access = PyList_GET_ITEM(entries, i), *lane = SLOT(access, Access_lane);
        PyObject *stream = SLOT(lane, Lane_owner);
        if (number(SLOT(access, Access_value)) <= number_in(lane, Lane_complete))
            continue;
        if (Py_TYPE(stream) != is.Stream || stream_polls(stream) <= 0 ||
            number(SLOT(access, Access_value)) > number_in(lane, Lane_complete))
            return 0;
    }
    return 1;
}

/* Whether the kernel may write to a NumPy array. */
static int
is_writeable(PyObject *host)
{
    PyObject *flags = PyObject_GetAttr(host, named.flags);
    PyObject *writeable = flags == NULL ? NULL : PyObject_GetAttr(flags, named.writeable);
    Py_XDECREF(flags);
    Py_XDECREF(writeable);
    return writeable == Py_True;
}

/* Whether a temporary has the shape and dtype of a NumPy array, and the host may copy to it now, and
   from it later. Under the lock. */
static int
is_usable(PyObject *array, PyObject *host, int back)
{
    PyObject *buffer = SLOT(array, Array_buffer), *seen = SLOT(array, Array_seen_by_host);
    PyObject *backing = SLOT(buffer, Buffer_backing), *history = SLOT(backing, Backing_history);
    if (!PyTuple_CheckExact(seen) || PyTuple_GET_ITEM(seen, 0) != backing ||
        Py_TYPE(host) != Py_TYPE(PyTuple_GET_ITEM(seen, 1)) ||
        SLOT(backing, Backing_host_writes) != Py_True ||
        (back && (SLOT(backing, Backing_host_reads) != Py_True || !is_writeable(host))) ||
        PyDict_GET_SIZE(SLOT(backing, Backing_unpublished)) ||
        SLOT(buffer, Buffer_closed) != Py_False || Py_TYPE(history) != is.History)
        return 0;
    return array_fits(array, host) && is_done(SLOT(history, History_reads)) &&
           is_done(SLOT(history, History_writes));
}

/* Take a temporary for a NumPy array from those of its parameter; 0 if Python must. Under the lock.
 */
static int
take_temporary(Carried *one)
{
    PyObject *spare = SLOT(one->parameter, KernelParameter_spare);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(spare) && i < LOOK_AT; i++) {
        PyObject *array = PyList_GET_ITEM(spare, i);
        if (Py_TYPE(array) != is.Array || !is_usable(array, one->host, one->back)) {
            if (PyErr_Occurred())
                break; /* a driver in Python was asked, and a signal handler has raised */
            continue;
        }
        one->array = Py_NewRef(array);
        one->place = i;
        if (PyList_SetSlice(spare, i, i + 1, NULL) == 0)
            return 1;
        Py_CLEAR(one->array);
        break;
    }
    return 0;
}

/* Copy between a temporary and the caller's array; 0 if it failed. Without the lock: nothing else
   uses the temporary, and the device is not torn down meanwhile. */
static int
copied(PyObject *scheduler, const Carried *one, int back)
{
    PyObject *seen = PyTuple_GET_ITEM(SLOT(one->array, Array_seen_by_host), 1);
    PyObject *guest = guest_enters(scheduler, NULL);
    if (guest == NULL)
        return 0;
    int done = SLOT(SLOT(scheduler, Scheduler_shutdown), Shutdown_over) == Py_False &&
               PyObject_SetItem(back ? one->host : seen, Py_Ellipsis,
                                back ? seen : one->host) == 0;
    if (done)
        count_copy(one->array);
    return guest_leaves(scheduler, guest) == 0 && done;
}

/* Give the temporaries back, for the next call: behind all others, or where they were if nothing was
   launched with them. Takes the lock, and without it they return to the pool: another thread may be
   looking through those of the same parameter. An exception stays set, or a signal handler's that
   came while it waited. */
void
carry_ends(PyObject *scheduler, Carried *carried, Py_ssize_t count, int launched)
{
    Raised aside = set_aside();
    int locked = count && lock_taken(scheduler, at.Scheduler_ready);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *spare = SLOT(carried[i].parameter, KernelParameter_spare);
        if (locked && PyList_Insert(spare, launched ? PyList_GET_SIZE(spare) : carried[i].place,
                                    carried[i].array) < 0)
            PyErr_Clear(); /* then it returns to the pool, too */
        Py_CLEAR(carried[i].array);
    }
    if (locked)
        lock_left(scheduler);
    if (PyErr_Occurred())
        drop_raised(aside);
    else
        raise_again(aside);
}

/* `bring_in` for all NumPy arrays of a call: each gets a temporary with its content. 0 if Python
   must do it, or with an exception set; then none has. */
int
carry_in(PyObject *scheduler, Carried *carried, Py_ssize_t count)
{
    PyObject *adopted = SLOT(scheduler, Scheduler_host_memory);
    Py_ssize_t taken = 0;
    int backs = 0;
    if (!is_plain_wait(scheduler) || Py_TYPE(adopted) != is.HostMemory ||
        PyDict_GET_SIZE(SLOT(adopted, HostMemory_pieces)) ||
        PyUnicode_CompareWithASCIIString(SLOT(scheduler, Scheduler_transfers), "auto"))
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        backs += carried[i].back;
        if (backs > 1)
            return 0; /* two that are written might share memory */
    }
    if (!lock_taken(scheduler, at.Scheduler_plain))
        return 0;
    while (taken < count && take_temporary(&carried[taken]))
        taken++;
    lock_left(scheduler);
    int done = taken == count;
    for (Py_ssize_t i = 0; done && i < count; i++)
        done = copied(scheduler, &carried[i], 0);
    if (!done)
        carry_ends(scheduler, carried, taken, 0);
    return done;
}

/* `bring_back`: have what a launch wrote, once it has reached a value, in the caller's arrays. 0 if
   Python must do it, also with an exception set. */
int
carry_back(PyObject *scheduler, PyObject *lane, PyObject *value, Carried *carried,
           Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!carried[i].back)
            continue;
        if (host_waits(scheduler, lane, value) != 1 || !copied(scheduler, &carried[i], 1))
            return 0;
    }
    return 1;
}
