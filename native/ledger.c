/* The ledger's verbs for one access, as `penstock.ledger.hazards` has them, where the page is short
   and its regions are in one piece. */

#include "layout.h"

/* Whether two regions without pitch share a byte; -1 if one has a pitch. */
int
regions_overlap(PyObject *a, PyObject *b)
{
    if (number(PyTuple_GET_ITEM(a, 3)) || number(PyTuple_GET_ITEM(b, 3)))
        return -1;
    return number(PyTuple_GET_ITEM(a, 0)) < number(PyTuple_GET_ITEM(b, 1)) &&
           number(PyTuple_GET_ITEM(b, 0)) < number(PyTuple_GET_ITEM(a, 1));
}

/* What the accesses of a list demand of a new one on `lane`: *behind becomes the first that needs a
   barrier, unless there is one. 0 if that is all; -1 if the Python function must find out. */
static int
needs_after(PyObject *lane, PyObject *entries, PyObject *region, PyObject **behind)
{
    long long epoch = number(SLOT(lane, Lane_epoch));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++) {
        PyObject *access = PyList_GET_ITEM(entries, i);
        if (SLOT(access, Access_region) != region) {
            int shared = regions_overlap(region, SLOT(access, Access_region));
            if (shared < 0)
                return -1;
            if (!shared)
                continue;
        }
        PyObject *other = SLOT(access, Access_lane);
        long long value = number(SLOT(access, Access_value));
        if (value <= number_in(other, Lane_complete))
            continue;
        if (other == lane) {
            if (*behind == NULL && number(SLOT(access, Access_epoch)) >= epoch)
                *behind = access;
        }
        else {
            PyObject *seen = PyDict_GetItemWithError(SLOT(lane, Lane_seen),
                                                     SLOT(other, Lane_number));
            if (seen == NULL || value > number(seen))
                return -1; /* a wait for another lane */
        }
    }
    return 0;
}

/* `needs_of_lane` for one use: (history, region, write). 0, or -1 if Python must find out. */
int
ledger_needs(PyObject *lane, PyObject *use, PyObject **behind)
{
    PyObject *history = PyTuple_GET_ITEM(use, 0), *region = PyTuple_GET_ITEM(use, 1);
    int write = PyTuple_GET_ITEM(use, 2) == Py_True;
    if (SLOT(history, History_many) != Py_False)
        return -1;
    if (needs_after(lane, SLOT(history, History_writes), region, behind) < 0)
        return -1;
    if (write)
        return needs_after(lane, SLOT(history, History_reads), region, behind);
    return 0;
}

/* `note_all` for one use. -1 with an exception set if it failed. */
int
ledger_note(PyObject *lane, PyObject *use, PyObject *value, PyObject *what)
{
    PyObject *history = PyTuple_GET_ITEM(use, 0), *region = PyTuple_GET_ITEM(use, 1);
    PyObject *write = PyTuple_GET_ITEM(use, 2);
    PyObject *reads = SLOT(history, History_reads), *writes = SLOT(history, History_writes);
    if (SLOT(history, History_many) == Py_False &&
        (write == Py_False || (PyList_GET_SIZE(reads) == 0 && PyList_GET_SIZE(writes) == 1))) {
        PyObject *entries = write == Py_True ? writes : reads;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++) {
            PyObject *known = PyList_GET_ITEM(entries, i);
            if (SLOT(known, Access_region) == region && SLOT(known, Access_lane) == lane) {
                put(known, Access_value, value);
                put(known, Access_epoch, SLOT(lane, Lane_epoch));
                put(known, Access_what, what);
                return 0;
            }
        }
    }
    PyObject *arguments[] = {history, region, write, lane, value, what};
    return call_method(named.note, arguments, 6);
}
