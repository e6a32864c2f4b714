/* Notes every address that a process connects to, sends to or asks a name server for. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void note(const char *where) {
    const char *path = getenv("NETWORK_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    dprintf(file, "%s\n", where);
    close(file);
}

static void note_address(const struct sockaddr *to) {
    char text[INET6_ADDRSTRLEN] = "?";
    if (to == NULL) return;
    if (to->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)to)->sin_addr, text, sizeof text);
    else if (to->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)to)->sin6_addr, text, sizeof text);
    else return;
    note(text);
}

int connect(int s, const struct sockaddr *to, socklen_t size) {
    REAL(connect);
    note_address(to);
    return real(s, to, size);
}

ssize_t sendto(int s, const void *data, size_t n, int flags, const struct sockaddr *to,
               socklen_t size) {
    REAL(sendto);
    note_address(to);
    return real(s, data, n, flags, to, size);
}

ssize_t sendmsg(int s, const struct msghdr *message, int flags) {
    REAL(sendmsg);
    note_address(message->msg_name);
    return real(s, message, flags);
}

int sendmmsg(int s, struct mmsghdr *messages, unsigned int n, int flags) {
    REAL(sendmmsg);
    for (unsigned int i = 0; i < n; i++) note_address(messages[i].msg_hdr.msg_name);
    return real(s, messages, n, flags);
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    REAL(getaddrinfo);
    if (host) note(host);
    return real(host, service, hints, found);
}
