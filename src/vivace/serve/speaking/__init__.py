"""Speech for every protocol: requests, sessions, queues and the speech itself."""
