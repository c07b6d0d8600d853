/*
 * What Ropeway's measurements need of MPI, behind names and types that no implementation changes.
 *
 * MPI has no binary interface: handles are pointers in Open MPI and integers in MPICH. So this file is compiled by the mpicc that belongs to the
 * mpirun in use, and everything that differs stays in it. One thread calls it. All functions but the first return 0, or an error code of MPI.
 */
#include <mpi.h>
#include <string.h>

#define INTERFACE 1
#define TAG 7

/* One send and one receive at a time. */
static MPI_Request sending = MPI_REQUEST_NULL;
static MPI_Request receiving = MPI_REQUEST_NULL;
static MPI_Request meeting = MPI_REQUEST_NULL;

int ropeway_mpi_interface(void)
{
	return INTERFACE;
}

int ropeway_mpi_init(int *rank, int *size)
{
	int error = MPI_Init(NULL, NULL);

	if (!error)
		error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (!error)
		error = MPI_Comm_rank(MPI_COMM_WORLD, rank);
	if (!error)
		error = MPI_Comm_size(MPI_COMM_WORLD, size);
	return error;
}

int ropeway_mpi_version(char *text, int room)
{
	char all[MPI_MAX_LIBRARY_VERSION_STRING];
	int length, error = MPI_Get_library_version(all, &length);

	if (!error && room > 0) {
		strncpy(text, all, room - 1);
		text[room - 1] = 0;
	}
	return error;
}

int ropeway_mpi_explain(int code, char *text, int room)
{
	char all[MPI_MAX_ERROR_STRING];
	int length, error = MPI_Error_string(code, all, &length);

	if (!error && room > 0) {
		strncpy(text, all, room - 1);
		text[room - 1] = 0;
	}
	return error;
}

/* The bytes must stay until ropeway_mpi_sent says so. */
int ropeway_mpi_send(const void *bytes, int count, int to)
{
	return MPI_Isend(bytes, count, MPI_BYTE, to, TAG, MPI_COMM_WORLD, &sending);
}

int ropeway_mpi_sent(int *done)
{
	return MPI_Test(&sending, done, MPI_STATUS_IGNORE);
}

/* The room must stay until ropeway_mpi_received or ropeway_mpi_unreceive says so. */
int ropeway_mpi_receive(void *room, int count, int from)
{
	return MPI_Irecv(room, count, MPI_BYTE, from, TAG, MPI_COMM_WORLD, &receiving);
}

static int length_of(MPI_Status *status, int *length)
{
	return MPI_Get_count(status, MPI_BYTE, length);
}

int ropeway_mpi_received(int *done, int *length)
{
	MPI_Status status;
	int error = MPI_Test(&receiving, done, &status);

	if (error) {
		/* Of a message that is too long the receive is complete, and its error the news. */
		*done = receiving == MPI_REQUEST_NULL;
		return error;
	}
	return *done ? length_of(&status, length) : 0;
}

/* Takes a receive back; *done: it had got its message already. */
int ropeway_mpi_unreceive(int *done, int *length)
{
	MPI_Status status;
	int cancelled = 0, error = MPI_Cancel(&receiving);

	if (!error)
		error = MPI_Wait(&receiving, &status);
	if (!error)
		error = MPI_Test_cancelled(&status, &cancelled);
	*done = !cancelled;
	return !error && *done ? length_of(&status, length) : error;
}

/* Whether a message is there; from: a rank, or -1 for any. */
int ropeway_mpi_probe(int from, int *found, int *whose, int *length)
{
	MPI_Status status;
	int error = MPI_Iprobe(from < 0 ? MPI_ANY_SOURCE : from, TAG, MPI_COMM_WORLD, found, &status);

	if (error || !*found)
		return error;
	*whose = status.MPI_SOURCE;
	return length_of(&status, length);
}

int ropeway_mpi_meet(void)
{
	return MPI_Ibarrier(MPI_COMM_WORLD, &meeting);
}

int ropeway_mpi_met(int *done)
{
	return MPI_Test(&meeting, done, MPI_STATUS_IGNORE);
}

int ropeway_mpi_finalize(void)
{
	return MPI_Finalize();
}

void ropeway_mpi_abort(void)
{
	MPI_Abort(MPI_COMM_WORLD, 1);
}
