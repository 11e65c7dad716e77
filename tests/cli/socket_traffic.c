// A preload library that counts the payload that a rank sends to others through sockets, by operation and type of
// element. Reads the frames of src/comm/cable.h and the headers of src/comm/tcp_links.cpp, and writes lines
// "OPERATION TYPE BYTES" to the file $TRAFFIC.$RANK at the end of the process.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { most_sockets = 1024, most_streams = 64, num_operations = 16, num_types = 16, data_frame = 0 };

struct frame {
  int32_t kind, stream;
  int64_t bytes;
};

struct header {
  uint8_t operation, type, others[14];
  int64_t bytes;
};

// A stream of messages, each a header and its payload.
struct stream {
  union {
    struct header header;
    unsigned char bytes[sizeof(struct header)];
  } of;
  int64_t moved;
};

static struct stream streams[most_sockets][most_streams];
static int64_t sent[num_operations][num_types];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void count(struct stream* stream, const unsigned char* data, int64_t length) {
  const int64_t head = sizeof(struct header);
  while (length > 0) {
    int64_t taken;
    if (stream->moved < head) {
      taken = length < head - stream->moved ? length : head - stream->moved;
      memcpy(stream->of.bytes + stream->moved, data, (size_t)taken);
    } else {
      const int64_t left = head + stream->of.header.bytes - stream->moved;
      taken = length < left ? length : left;
      sent[stream->of.header.operation % num_operations][stream->of.header.type % num_types] += taken;
    }
    stream->moved += taken;
    data += taken;
    length -= taken;
    if (stream->moved >= head && stream->moved == head + stream->of.header.bytes) stream->moved = 0;
  }
}

ssize_t sendmsg(int socket, const struct msghdr* message, int flags) {
  struct frame frame;
  if (socket < most_sockets && message->msg_iovlen > 1 && message->msg_iov[0].iov_len == sizeof frame) {
    memcpy(&frame, message->msg_iov[0].iov_base, sizeof frame);
    if (frame.kind == data_frame && frame.stream >= 0 && frame.stream < most_streams) {
      pthread_mutex_lock(&mutex);
      for (size_t i = 1; i < message->msg_iovlen; ++i)
        count(&streams[socket][frame.stream], message->msg_iov[i].iov_base, (int64_t)message->msg_iov[i].iov_len);
      pthread_mutex_unlock(&mutex);
    }
  }
  return ((ssize_t(*)(int, const struct msghdr*, int))dlsym(RTLD_NEXT, "sendmsg"))(socket, message, flags);
}

__attribute__((destructor)) static void report(void) {
  const char* path = getenv("TRAFFIC");
  const char* rank = getenv("RANK");
  char name[4096];
  if (path == NULL || rank == NULL) return;
  snprintf(name, sizeof name, "%s.%s", path, rank);
  FILE* file = fopen(name, "w");
  if (file == NULL) return;
  for (int i = 0; i < num_operations; ++i)
    for (int type = 0; type < num_types; ++type)
      if (sent[i][type] > 0) fprintf(file, "%d %d %lld\n", i, type, (long long)sent[i][type]);
  fclose(file);
}
